"""Merging of plain config dicts. Pure: nothing that is passed in is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "???"

_NODE_INTERPOLATION = re.compile(r"\$\{\s*((?:inherit_from|copy)\s*:\s*)?([^${}\s:\[\]]+)\s*\}")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` on top.

    Dicts are merged key by key, everything else (lists too) is replaced. A ``???`` says "to be set" and never
    replaces a value. Laying keys over a value that is only a reference (``${a.b}``, ``${copy:a.b}``) keeps what
    is referred to below them.
    """
    result = _merge(base, over, base)
    assert isinstance(result, dict)
    return result


def merge_all(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``layers`` merged, low to high precedence."""
    result: dict[str, Any] = {}
    for layer in layers:
        result = merge(result, layer)
    return result


def _merge(base: Any, over: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(over, Mapping):
        return base if over == MISSING and base is not None else copy_plain(over)
    if isinstance(base, str):
        base = _reference_as_dict(base, root)
    if not isinstance(base, Mapping):
        return copy_plain(over)
    result = {key: value for key, value in base.items()}
    for key, value in over.items():
        result[key] = _merge(result[key], value, root) if key in result else copy_plain(value)
    return result


def _reference_as_dict(text: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``${copy:a.b}`` as ``{_copy: a.b}``, likewise a plain ``${a.b}`` that points at a dict; None for the rest."""
    match = _NODE_INTERPOLATION.fullmatch(text.strip())
    if match is None:
        return None
    form, path = match.groups()
    if form is not None:
        return {"_inherit_from" if form.startswith("inherit") else "_copy": path}
    if path.startswith("."):
        return None
    return {"_copy": path} if isinstance(lookup(root, path.split(".")), Mapping) else None


def copy_plain(node: Any) -> Any:
    """A deep copy of plain containers (tuples become lists)."""
    if isinstance(node, Mapping):
        return {key: copy_plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [copy_plain(value) for value in node]
    return node


class _Absent:
    """The type of ``ABSENT``, told apart from None, which a config may hold."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


def lookup(root: Any, path: Sequence[str]) -> Any:
    """What stands at ``path`` under ``root`` (numbers step into lists), or ``ABSENT``."""
    node = root
    for step in path:
        if isinstance(node, Mapping) and step in node:
            node = node[step]
        elif isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        else:
            return ABSENT
    return node
