"""Paths into plain config dicts, and how they are written in messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Path = tuple[str, ...]
MISSING = "???"


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


def iter_leaves(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value under ``node`` that is neither a dict nor a list, with its path."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from iter_leaves(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from iter_leaves(value, (*path, str(index)))
    else:
        yield path, node


def copy_plain(node: Any) -> Any:
    """A deep copy of plain containers (tuples become lists)."""
    if isinstance(node, Mapping):
        return {key: copy_plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [copy_plain(value) for value in node]
    return node


def join(path: Sequence[str]) -> str:
    """A path as it is written in messages: ``a.b[0].c``."""
    text = ""
    for step in path:
        text += f"[{step}]" if step.isdecimal() and text else f".{step}" if text else step
    return text or "the top level"


def how_to_set(path: Path, root: Any = None, value: str = "VALUE") -> str:
    """Both spellings that set ``path``: in the dict of overrides, and on the command line.

    Inside a list of ``root`` there is no path to an element: the whole list is set.
    """
    for depth in range(len(path)):
        if isinstance(lookup(root, path[:depth]), list):
            path, value = path[:depth], "[...]"
            break
    if any("." in step for step in path):
        return "a config file, as its path has a key with a dot in it"
    nested = "".join(f'{{"{step}": ' for step in path) + value + "}" * len(path)
    return f"overrides={nested} in Python, or ++{'.'.join(path)}={value} on the command line"


_KINDS = {dict: "a dict", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def kind_of(value: Any) -> str:
    """What ``value`` is, in a config's own terms and without showing it: it may be a secret."""
    if value is None:
        return "nothing"
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")
