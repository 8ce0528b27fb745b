"""``_inherit_from``, ``_copy`` and ``_delete_key``, and the string forms of the first two. Pure.

Every target means the tree as it stands before anything has been moved, so neither the order of the files nor
that of the keys matters, two servers may inherit from one, and a chain (a from b from c) ends with a holding all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from nemo_gym.config.merging import COPY_KEY, DELETE_KEY, DIRECTIVE_KEYS, INHERIT_KEY, Deletions, merge
from nemo_gym.config.paths import ABSENT, MISSING, Path, copy_plain, join, kind_of, lookup
from nemo_gym.errors import ConfigError

_STRING_FORM = re.compile(r"\s*\$\{\s*(inherit_from|copy)\s*:(?P<target>.*)\}\s*", re.DOTALL)
_STRING_FORM_ANYWHERE = re.compile(r"(?<!\\)\$\{\s*(inherit_from|copy)\s*:")
_INNER_REFERENCE = re.compile(r"\$\{\s*([^${}\s:]+)\s*\}")


@dataclass(frozen=True)
class Expanded:
    """A tree without directives.

    ``moved`` maps each place that was taken over to those that took it over; ``sketched`` names the top-level
    entries that may be incomplete.
    """

    tree: dict[str, Any]
    moved: dict[Path, list[Path]]
    sketched: frozenset[str]


def expand_directives(
    tree: Mapping[str, Any],
    caller_layers: Sequence[Mapping[str, Any]] = (),
    sketched: Collection[str] = (),
) -> Expanded:
    """``tree`` (as ``merge_layers`` gives it) with its directives carried out.

    ``caller_layers`` are the layers above the files (``env.yaml``, overrides), low to high, which are part of
    ``tree`` already. What they set at a place that a server inherits from stays above what the files say in that
    server, so that either name may be used in an override.

    ``sketched`` names top-level entries that may be absent or incomplete for now (``policy_model`` in planning):
    what is taken from them and is not there yet is no error, and makes the taker sketched as well.
    """
    expansion = _Expansion(tree, caller_layers, set(sketched))
    result = expansion.value(tree, (), ABSENT)
    for source in expansion.moved:
        _remove(result, source)
    return Expanded(result, expansion.moved, frozenset(expansion.sketched))


@dataclass
class _Expansion:
    tree: Mapping[str, Any]
    caller_layers: Sequence[Mapping[str, Any]]
    sketched: set[str]
    moved: dict[Path, list[Path]] = field(default_factory=dict)
    _done: dict[Path, Any] = field(default_factory=dict)
    _open: list[Path] = field(default_factory=list)

    def value(self, raw: Any, path: Path, below: Any) -> Any:
        """``raw``, which stands at ``path``, carried out on top of ``below`` (what is inherited there)."""
        if isinstance(raw, str):
            return self._text(raw, path, below)
        if isinstance(raw, list):
            return [self.value(item, (*path, str(index)), ABSENT) for index, item in enumerate(raw)]
        if not isinstance(raw, Mapping):
            return raw
        if path in self._done:
            return copy_plain(self._done[path])
        self._open.append(path)
        result = self._dict(raw, path, below)
        self._open.pop()
        if below is ABSENT:
            self._done[path] = result
            return copy_plain(result)
        return result

    def _text(self, raw: str, path: Path, below: Any) -> Any:
        form = _STRING_FORM.fullmatch(raw)
        if form is not None:
            return self._take(INHERIT_KEY if form[1] == "inherit_from" else COPY_KEY, form["target"], path, raw)
        if inside := _STRING_FORM_ANYWHERE.search(raw):
            raise ConfigError(
                f"{join(path)}: ${{{inside[1]}:...}} must be the whole value, as what it takes over may be a dict. "
                f"To put a value inside a text, write ${{a.b}}."
            )
        return below if raw == MISSING and below is not ABSENT and below is not None else raw

    def _dict(self, raw: Mapping[str, Any], path: Path, below: Any) -> Any:
        result: dict[str, Any] = dict(below) if isinstance(below, Mapping) else {}
        own = [key for key in raw if key not in DIRECTIVE_KEYS]
        directive = _source_directive(raw, path)
        if directive is not None:
            key, target = directive
            source = self._take(key, target, path, f"{key}: {target}")
            if source == MISSING and path[0] in self.sketched:
                source = {}
            if not isinstance(source, Mapping):
                if not own:
                    return source
                raise ConfigError(
                    f"{join((*path, key))} points at {target!r}, which is "
                    f"{'not set (???)' if source == MISSING else f'{kind_of(source)}, no dict'}, while "
                    f"there are further keys beside it ({', '.join(own)}). They can only be laid over a dict."
                )
            result = merge(result, source)
        for name, gone in raw.get(DELETE_KEY, Deletions()).names.items():
            if name not in result and not gone and name not in own and not self.sketched.intersection(path[:1]):
                raise ConfigError(_nothing_to_delete(name, path, [*result, *own]))
            result.pop(name, None)
        for key in own:
            result[key] = self.value(raw[key], (*path, key), result.get(key, ABSENT))
        if directive is not None and directive[0] == INHERIT_KEY:
            result = self._lay_caller_layers(result, path)
        return result

    def _lay_caller_layers(self, result: dict[str, Any], path: Path) -> dict[str, Any]:
        if any(self._overlay_of_sources(layer, path) for layer in self.caller_layers):
            for layer in self.caller_layers:
                result = merge(result, self._overlay(layer, path))
        return result

    def _overlay(self, layer: Mapping[str, Any], path: Path) -> dict[str, Any]:
        own = _without_directives(lookup(layer, path))
        return merge(self._overlay_of_sources(layer, path), own if isinstance(own, Mapping) else {})

    def _overlay_of_sources(self, layer: Mapping[str, Any], path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for source, places in self.moved.items():
            if path in places:
                result = merge(result, self._overlay(layer, source))
        return result

    def _take(self, key: str, target: str, path: Path, spelled: str) -> Any:
        """A copy of what stands at ``target``; an ``_inherit_from`` is noted as a move."""
        steps = tuple(step.strip() for step in self._without_references(target, path, spelled).split("."))
        if steps == path[: len(steps)]:
            raise ConfigError(f"{join(path)} ({spelled}): this would put {join(steps)} into itself.")
        value = copy_plain(self._at(steps, path, spelled))
        if steps[0] in self.sketched:
            self.sketched.add(path[0])
        if key == INHERIT_KEY:
            if isinstance(lookup(self.tree, steps[:-1]), list):
                raise ConfigError(
                    f"{join(path)} ({spelled}): an element cannot be moved out of a list. Use the copying form."
                )
            places = self.moved.setdefault(steps, [])
            places += [path] if path not in places else []
        return value

    def _without_references(self, target: str, path: Path, spelled: str) -> str:
        def value_of(match: re.Match[str]) -> str:
            value = lookup(self.tree, match[1].split("."))
            if isinstance(value, str | int) and value != MISSING and "${" not in str(value):
                return str(value)
            raise ConfigError(
                f"{join(path)} ({spelled}): the target is named through ${{{match[1]}}}, which must be a plain text; "
                f"found {'nothing' if value is ABSENT else repr(value)}."
            )

        return _INNER_REFERENCE.sub(value_of, target)

    def _at(self, steps: Path, holder: Path, spelled: str) -> Any:
        node: Any = self.tree
        for depth, step in enumerate(steps):
            if depth and _has_directive(node):
                node = self._carried_out(node, steps[:depth], holder, spelled)
                value = lookup(node, steps[depth:])
                return value if value is not ABSENT else self._lacking(steps, node, depth, holder, spelled)
            below = lookup(node, (step,))
            if below is ABSENT:
                return self._lacking(steps, node, depth, holder, spelled)
            node = below
        return self._carried_out(node, steps, holder, spelled)

    def _lacking(self, steps: Path, node: Any, depth: int, holder: Path, spelled: str) -> str:
        """What a target that is not there counts as: to be set later in a sketched entry, else an error."""
        if steps[0] in self.sketched:
            return MISSING
        while depth < len(steps) - 1 and (below := lookup(node, (steps[depth],))) is not ABSENT:
            node, depth = below, depth + 1
        raise ConfigError(_no_target(steps, node, depth, holder, spelled))

    def _carried_out(self, node: Any, path: Path, holder: Path, spelled: str) -> Any:
        if path in self._open:
            circle = [*self._open[self._open.index(path) :], path]
            places = [join(place) for place in circle if _has_directive(lookup(self.tree, place)) or place == path]
            raise ConfigError(
                f"{join(holder)} ({spelled}): this goes round in a circle: {' -> '.join(dict.fromkeys(places))} -> "
                f"{join(path)}. One of them must stand on its own."
            )
        if isinstance(node, str) and _STRING_FORM.fullmatch(node):
            self._open.append(path)
            value = self.value(node, path, ABSENT)
            self._open.pop()
            return value
        return self.value(node, path, ABSENT)


def _source_directive(raw: Mapping[str, Any], path: Path) -> tuple[str, str] | None:
    given = {key: raw[key] for key in (INHERIT_KEY, COPY_KEY) if raw.get(key) is not None}
    if given and not path:
        raise ConfigError(f"{next(iter(given))} cannot stand at the top level: it is for what one key holds.")
    if len(given) > 1:
        raise ConfigError(
            f"{join(path)} has both {INHERIT_KEY} and {COPY_KEY}; only one base can stand below its keys."
        )
    for key, target in given.items():
        if not isinstance(target, str) or not target.strip() or target == MISSING:
            raise ConfigError(
                f"{join((*path, key))} must be the path of what to take over, such as a.b; found {target!r}."
            )
        return key, target.strip()
    return None


def _has_directive(node: Any) -> bool:
    if isinstance(node, str):
        return _STRING_FORM.fullmatch(node) is not None
    return isinstance(node, Mapping) and not DIRECTIVE_KEYS.isdisjoint(node)


def _without_directives(node: Any) -> Any:
    """``node`` reduced to the plain values in it."""
    if isinstance(node, Mapping):
        return {
            key: _without_directives(value)
            for key, value in node.items()
            if key not in DIRECTIVE_KEYS and not (isinstance(value, str) and _has_directive(value))
        }
    return node if node is not ABSENT else {}


def _remove(tree: dict[str, Any], path: Path) -> None:
    """Take ``path`` out of ``tree``, and the dicts above it that are empty then."""
    for depth in range(len(path), 0, -1):
        parent = lookup(tree, path[: depth - 1])
        if not isinstance(parent, dict) or (depth < len(path) and parent.get(path[depth - 1]) != {}):
            return
        parent.pop(path[depth - 1], None)


def _no_target(steps: Path, node: Any, depth: int, holder: Path, spelled: str) -> str:
    keys = [key for key in node if key not in DIRECTIVE_KEYS] if isinstance(node, Mapping) else []
    if depth:
        lack = f"{join(steps[:depth])} has no key {steps[depth]!r}" if keys else f"{join(steps[:depth])} is no dict"
    else:
        lack = f"there is no key {steps[0]!r}"
    message = f"{join(holder)} ({spelled}): nothing stands at {join(steps)}: {lack}."
    near = get_close_matches(steps[depth], keys, n=1, cutoff=0.5)
    if near:
        return f"{message} Did you mean {join((*steps[:depth], near[0], *steps[depth + 1 :]))}?"
    if depth:
        return f"{message} It has {', '.join(keys)}." if keys else message
    return f"{message} Name the file that declares it in config_paths."


def _nothing_to_delete(name: str, path: Path, keys: list[str]) -> str:
    near = get_close_matches(name, keys, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{join((*path, DELETE_KEY))} names {name!r}, but there is no key {name!r} in {join(path)}.{hint}"
