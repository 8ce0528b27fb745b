"""Merging of plain config dicts. Pure: nothing that is passed in is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.config.paths import ABSENT, MISSING, copy_plain, lookup
from nemo_gym.errors import ConfigError

INHERIT_KEY = "_inherit_from"
COPY_KEY = "_copy"
DELETE_KEY = "_delete_key"
DIRECTIVE_KEYS = frozenset({INHERIT_KEY, COPY_KEY, DELETE_KEY})

_WHOLE_REFERENCE = re.compile(r"\$\{\s*(?:(inherit_from|copy)\s*:\s*)?([^${}\s:]+)\s*\}")


@dataclass(frozen=True)
class Deletions:
    """The names of a ``_delete_key``; True for those that have been dropped from a lower layer already."""

    names: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """The content of one source of configuration. ``origin`` names it in messages.

    ``by_caller`` tells ``env.yaml`` and overrides from config files.
    """

    origin: str
    content: Mapping[str, Any]
    by_caller: bool = False


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` on top: dicts key by key, everything else (lists too) replaced.

    A ``???`` says "to be set" and replaces no value.
    """
    result: dict[str, Any] = copy_plain(base)
    for key, value in over.items():
        below = result.get(key, ABSENT)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            result[key] = merge(below, value)
        elif value != MISSING or below is ABSENT or below is None:
            result[key] = copy_plain(value)
    return result


def merge_layers(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``layers`` merged, low to high precedence, as ``merge`` does; directives are left in the result.

    Two kinds of value need what is below them while it is still known. ``_delete_key`` takes keys of lower layers
    away here and now, and stays in the result (as ``Deletions``) for what a ``_copy`` beside it brings. Keys laid
    over a value that is nothing but a reference (``${copy:a.b}``, or ``${a.b}`` where that is a dict) are laid
    over what it refers to.
    """
    result: dict[str, Any] = {}
    for layer in layers:
        result = _lay(result, layer, root=result, path="")
    return result


def _lay(below: Any, over: Mapping[str, Any], root: Mapping[str, Any], path: str) -> dict[str, Any]:
    if isinstance(below, str):
        below = _reference_as_dict(below, root)
    result: dict[str, Any] = dict(below) if isinstance(below, Mapping) else {}
    skipped: set[str] = {DELETE_KEY}
    if DELETE_KEY in over:
        names = dict.fromkeys(_names_to_delete(over[DELETE_KEY], path), False)
        has_source = any(key in node for node in (result, over) for key in (INHERIT_KEY, COPY_KEY))
        for name in names:
            if name in result:
                del result[name]
                names[name] = True
            elif name in over and not has_source:
                # Nothing below has it: what is meant is the key right beside the directive.
                skipped.add(name)
                names[name] = True
        earlier = result.get(DELETE_KEY, Deletions()).names
        result[DELETE_KEY] = Deletions({**earlier, **{n: hit or earlier.get(n, False) for n, hit in names.items()}})
    for key, value in over.items():
        if key not in skipped:
            result[key] = _lay_value(result.get(key, ABSENT), value, root, f"{path}.{key}" if path else key)
    return result


def _lay_value(below: Any, value: Any, root: Mapping[str, Any], path: str) -> Any:
    if isinstance(value, Mapping):
        return _lay(below, value, root, path)
    if isinstance(value, list | tuple):
        return [_lay_value(ABSENT, item, root, f"{path}[{index}]") for index, item in enumerate(value)]
    return below if value == MISSING and below is not ABSENT and below is not None else value


def _names_to_delete(value: Any, path: str) -> list[str]:
    names = value.split(",") if isinstance(value, str) else value
    if names is None:
        return []
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n.strip() for n in names):
        at = f"{path}.{DELETE_KEY}" if path else DELETE_KEY
        raise ConfigError(f'{at} must name keys, as in "x,y" or [x, y]; found {value!r}.')
    return [name.strip() for name in names]


def _reference_as_dict(text: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    match = _WHOLE_REFERENCE.fullmatch(text.strip())
    if match is None:
        return None
    form, path = match.groups()
    if form is not None:
        return {INHERIT_KEY if form == "inherit_from" else COPY_KEY: path}
    return {COPY_KEY: path} if isinstance(lookup(root, path.split(".")), Mapping) else None
