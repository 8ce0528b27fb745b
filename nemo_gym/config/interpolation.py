"""``${...}`` in a tree without directives: every value, and every reference that leads nowhere.

OmegaConf resolves; this module says what went wrong in terms of the config.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nemo_gym.config.paths import ABSENT, MISSING, Path, copy_plain, iter_leaves, lookup

if TYPE_CHECKING:
    from omegaconf import DictConfig

_REFERENCE = re.compile(r"(?<!\\)\$\{\s*(\.*)([^${}\s:.][^${}\s:]*)\s*\}")
_VARIABLE = re.compile(r"(?<!\\)\$\{\s*oc\.env\s*:\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}")
_OPENING = re.compile(r"(\\*)\$\{")
_KEY_IN_MESSAGE = re.compile(r"Interpolation key '(.+?)' not found|Missing mandatory value: (\S+)")


_TO_ITSELF = "refers, directly or through others, to itself"


@dataclass(frozen=True)
class BrokenReference:
    """A value at ``holder`` that needs ``target``, which is absent (``to_be_set``: is there as ``???``).

    ``variable`` is set instead of ``target`` for an environment variable, ``problem`` when it is something else.
    """

    holder: Path
    target: Path = ()
    to_be_set: bool = False
    variable: str = ""
    problem: str = ""


@dataclass
class Interpolated:
    """``config`` with its references alive, except that those named in ``tolerated`` are ``???`` now."""

    config: DictConfig
    plain: dict[str, Any]
    broken: list[BrokenReference] = field(default_factory=list)


def interpolate(tree: Mapping[str, Any], tolerated: Callable[[BrokenReference], bool]) -> Interpolated:
    """Resolve ``tree``; a broken reference that is ``tolerated`` counts as ``???``, the others are returned."""
    from omegaconf import OmegaConf

    tree = _as_dict(copy_plain(tree))
    malformed = list(_malformed(tree))
    for reference in malformed:
        _replace(tree, reference.holder)
    failed = _failing(tree, OmegaConf.create(tree))
    broken = [*malformed, *_causes(tree, failed)]
    for holder in failed:
        _replace(tree, holder)
    for holder in _endless(tree):
        broken.append(BrokenReference(holder, problem=_TO_ITSELF))
        _replace(tree, holder)
    config = OmegaConf.create(tree)
    plain = _as_dict(OmegaConf.to_container(config, resolve=True, throw_on_missing=False))
    return Interpolated(config, plain, [reference for reference in broken if not tolerated(reference)])


def _as_dict(node: Any) -> dict[str, Any]:
    return dict(node)


def _malformed(tree: Mapping[str, Any]) -> Iterator[BrokenReference]:
    """Texts that OmegaConf refuses to read at all."""
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError

    for path, value in iter_leaves(tree):
        if isinstance(value, str) and "${" in value:
            try:
                OmegaConf.create({"value": value})
            except GrammarParseError as error:
                problem = f"cannot be read as ${{...}}: {_first_line(error)}. For the characters ${{, write \\${{"
                yield BrokenReference(path, problem=problem)


def _failing(raw: Any, node: Any, path: Path = ()) -> dict[Path, Exception]:
    """The values under ``node`` that cannot be resolved, with OmegaConf's reason."""
    from omegaconf.errors import OmegaConfBaseException

    failed: dict[Path, Exception] = {}
    items = raw.items() if isinstance(raw, Mapping) else enumerate(raw)
    for key, value in items:
        here = (*path, str(key))
        if isinstance(value, Mapping | list):
            failed |= _failing(value, node[key], here)
        elif isinstance(value, str) and "${" in value:
            try:
                node[key]
            except OmegaConfBaseException as error:
                failed[here] = error
            except RecursionError as error:
                failed[here] = error
    return failed


def _endless(tree: Mapping[str, Any]) -> list[Path]:
    """References to a dict or list that holds, directly or through other such references, the reference itself.

    Each of them can be resolved by itself; only the whole never ends.
    """
    targets = {
        path: set(find_targets(path, value))
        for path, value in iter_leaves(tree)
        if isinstance(value, str) and "${" in value
    }
    leads_to = {
        holder: {other for other in targets for target in named if other[: len(target)] == target}
        for holder, named in targets.items()
    }
    return [holder for holder in targets if holder in _reached(holder, leads_to)]


def _reached(start: Path, leads_to: Mapping[Path, set[Path]]) -> set[Path]:
    reached: set[Path] = set()
    pending = [start]
    while pending:
        for other in leads_to[pending.pop()] - reached:
            reached.add(other)
            pending.append(other)
    return reached


def _causes(tree: Mapping[str, Any], failed: Mapping[Path, Exception]) -> Iterator[BrokenReference]:
    targets = {holder: set(find_targets(holder, lookup(tree, holder))) for holder in failed}
    causes = {holder: list(_own_causes(tree, holder, lookup(tree, holder))) for holder in failed}
    # What fails only because something that it refers to fails is told there.
    told = {holder for holder in failed if causes[holder]}
    while more := {holder for holder in failed if holder not in told and targets[holder] & told}:
        told |= more
    for holder, error in failed.items():
        yield from causes[holder] if holder in told else [_cause_from_message(tree, holder, error)]


def _own_causes(tree: Mapping[str, Any], holder: Path, text: str) -> Iterator[BrokenReference]:
    for target in find_targets(holder, text):
        value = lookup(tree, target)
        if value is ABSENT and not _leads_on(tree, target):
            yield BrokenReference(holder, target)
        elif value == MISSING:
            yield BrokenReference(holder, target, to_be_set=True)
    for variable in dict.fromkeys(_VARIABLE.findall(text)):
        if variable not in os.environ:
            yield BrokenReference(holder, variable=variable)


def _leads_on(tree: Mapping[str, Any], target: Path) -> bool:
    """Whether ``target`` passes through another reference, so that only OmegaConf knows where it ends."""
    return any(isinstance(above := lookup(tree, target[:d]), str) and "${" in above for d in range(1, len(target)))


def find_targets(holder: Path, text: str) -> Iterator[Path]:
    """The places that ``text`` refers to by a plain path, each once, innermost references only."""
    seen = set()
    for dots, name in _REFERENCE.findall(text):
        steps = tuple(step for step in re.split(r"[.\[\]]", name) if step)
        target = (*holder[: -len(dots)], *steps) if dots else steps
        if target not in seen:
            seen.add(target)
            yield target


def _cause_from_message(tree: Mapping[str, Any], holder: Path, error: Exception) -> BrokenReference:
    line = _first_line(error)
    match = _KEY_IN_MESSAGE.search(line)
    if match is not None:
        target = tuple((match[1] or match[2]).split("."))
        return BrokenReference(holder, target, to_be_set=lookup(tree, target) == MISSING)
    if isinstance(error, RecursionError) or "Recursive interpolation" in line or "parent node" in line:
        return BrokenReference(holder, problem=_TO_ITSELF)
    if "Unsupported interpolation type" in line:
        return BrokenReference(
            holder,
            problem=f"uses the unknown form ${{{line.rsplit(' ', 1)[-1]}:...}}; known are ${{a.b}}, "
            f"${{oc.env:VARIABLE,default}}, and, as a whole value, ${{copy:a.b}} and ${{inherit_from:a.b}}",
        )
    return BrokenReference(holder, problem=f"cannot be resolved: {line}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _replace(tree: dict[str, Any], path: Path) -> None:
    parent = lookup(tree, path[:-1])
    parent[int(path[-1]) if isinstance(parent, list) else path[-1]] = MISSING


def escape_texts(plain: Any) -> Any:
    """``plain`` with every ``${`` in its texts escaped, so that reading it as a config gives the same again."""
    if isinstance(plain, Mapping):
        return {key: escape_texts(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [escape_texts(value) for value in plain]
    return _OPENING.sub(r"\1\1\\${", plain) if isinstance(plain, str) else plain
