"""Calls in what a model wrote, for models and endpoints that have no tool calls of their own.

Read are, alone or in a code block or in ``<tool_call>`` tags: Python calls, ``[f(a=1), g(b="x")]`` or ``f(a=1)``, and
JSON, ``{"name": "f", "arguments": {"a": 1}}`` or ``{"f": {"a": 1}}``, one or a list of them. Nothing is ever executed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final

import orjson

from images.resources_servers.function_calls.matching import Call
from nemo_gym.servers.json_values import loads

LONGEST_TEXT: Final = 20_000
"""Characters of a text that calls are looked for in; a longer one has none."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"```\w*\s*\n(.*?)```", re.DOTALL)
_ARGUMENTS: Final = ("arguments", "parameters")


def calls_in_text(text: str) -> list[Call]:
    """The calls that a text consists of, or that its tags or code blocks do; none when anything in these is no call.

    Dots in names are underscores, as they are in the names of tools.
    """
    if len(text) > LONGEST_TEXT:
        return []
    places = _TAGGED.findall(text) or _FENCED.findall(text) or [text]
    calls: list[Call] = []
    for place in places:
        found = _calls_in(place.strip())
        if not found:
            return []
        calls += found
    return [Call(call.name.replace(".", "_"), call.arguments) for call in calls]


def _calls_in(place: str) -> list[Call]:
    try:
        value = loads(place.encode())
    except orjson.JSONDecodeError:
        pass
    else:
        return _all(map(_json_call, value if isinstance(value, list) else [value]))
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in texts that Python does not know
            tree = ast.parse(place, mode="eval").body
        return _all(map(_python_call, tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):  # what literal_eval may raise
        return []


def _all(calls: Iterator[Call | None]) -> list[Call]:
    """All calls, or none when something is no call."""
    listed = list(calls)
    found = [call for call in listed if call is not None]
    return found if len(found) == len(listed) else []


def _json_call(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    arguments: Any
    if isinstance(name, str):
        arguments = next((value[key] for key in _ARGUMENTS if key in value), {})
    elif len(value) == 1:
        ((name, arguments),) = value.items()
    else:
        return None
    if isinstance(arguments, str):  # as the APIs have them
        try:
            arguments = loads(arguments.encode())
        except orjson.JSONDecodeError:
            return None
    return Call(name, arguments) if name and isinstance(arguments, dict) else None


def _python_call(node: ast.expr) -> Call | None:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        return None
    name = ast.unparse(node.func)
    if re.fullmatch(r"[\w.]+", name) is None:
        return None
    return Call(name, {str(keyword.arg): _python_value(keyword.value) for keyword in node.keywords})


def _python_value(node: ast.expr) -> Any:
    """A literal's value; the name of a variable is a text, as the possible answers have it."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
