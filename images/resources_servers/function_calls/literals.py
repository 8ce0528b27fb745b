"""Values of Java and JavaScript, from the texts that a model gives as arguments of functions of these languages.

Tools are described in JSON, which has no ``long`` and no ``HashMap``: such an argument is a text in the language's own
syntax. What is no literal of the wanted type stays the text that it is, so that it can be the name of a variable.

Which literals a type takes follows the checker of the Berkeley Function Calling Leaderboard, of which the README tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

LONGEST_LITERAL: Final = 4000
"""Characters of a text that is read as a literal; a longer one stays a text."""

DEEPEST_LITERAL: Final = 8
"""How many brackets of a literal may stand in one another; what is deeper stays a text."""

MOST_DIGITS: Final = 300
"""Characters of a text that is read as a number."""

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PLAIN_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?")

# What may follow "new ArrayList<...>()": a class body, which is empty or one initializer.
_BODY = r"(?:\{(?:\s*\{(.*)\})?\s*\})?\s*;?"
_ARRAY_LIST_OF = re.compile(r"new\s+ArrayList\s*<[^()]*>\s*\(\s*Arrays\s*\.\s*asList\s*\((.*)\)\s*\)\s*;?", re.DOTALL)
_ARRAY_LIST = re.compile(r"new\s+ArrayList\s*<[^()]*>\s*\(\s*\)\s*" + _BODY, re.DOTALL)
_ARRAY = re.compile(r"new\s+[\w.]+\s*\[\s*\]\s*\{(.*)\}\s*;?", re.DOTALL)
_HASH_MAP = re.compile(r"new\s+HashMap\s*<[^()]*>\s*\(\s*\)\s*" + _BODY, re.DOTALL)
_STATEMENT = re.compile(r"(add|put)\s*\((.*)\)", re.DOTALL)
_JS_ARRAY = re.compile(r"(?:new\s+Array\s*\((.*)\)|\[(.*)\])\s*;?", re.DOTALL)
_JS_OBJECT = re.compile(r"\{(.*)\}\s*;?", re.DOTALL)
_JS_PAIR = re.compile(r"""("[^"]*"|'[^']*'|[^:"']*):(.*)""", re.DOTALL)


def java_value(text: str, type_name: str, item_type: str | None = None) -> Any:
    """The value of a Java literal of this type, or the text. A ``String``, ``char`` or ``any`` is its text."""
    if type_name in ("ArrayList", "Array", "HashMap") and len(text) > LONGEST_LITERAL:
        return text
    if type_name == "ArrayList":
        return _java_list(text, item_type)
    if type_name == "Array":
        found = _ARRAY.fullmatch(text.strip())
        return text if found is None else [_java_item(part, item_type) for part in split_outside(found[1], ",")]
    if type_name == "HashMap":
        return _java_map(text)
    return _scalar(text, type_name, _JAVA_SCALARS)


def javascript_value(text: str, type_name: str, item_type: str | None = None) -> Any:
    """The same for JavaScript, where a ``String`` may be quoted; an ``any`` is its text."""
    if type_name in ("array", "dict"):
        if len(text) > LONGEST_LITERAL:
            return text
        return _js_array(text, item_type) if type_name == "array" else _js_object(text)
    if type_name == "String":
        return unquoted(text)
    return _scalar(text, type_name, _JS_SCALARS)


def split_outside(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand in no quotes and no brackets, trimmed; empty ones left out."""
    parts, start, depth, quote, escaped = [], 0, 0, "", False
    for position, character in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part for part in map(str.strip, parts) if part]


def unquoted(text: str) -> str:
    """A text without the quotes around it, where there are some."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _integer(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text) else text


def _suffixed(number: re.Pattern[str], suffixes: str, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Reads a number that must carry one of these letters at its end."""
    return lambda text: convert(text[:-1]) if text[-1:] in suffixes and number.fullmatch(text[:-1]) else text


def _boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


_Reader = Callable[[str], Any]

_JAVA_SCALARS: Final[dict[str, _Reader]] = {
    "byte": _integer,
    "short": _integer,
    "integer": _integer,
    "long": _suffixed(_INTEGER, "lL", int),
    "float": _suffixed(_DECIMAL, "fF", float),
    "double": lambda text: float(text) if _DECIMAL.fullmatch(text) else text,
    "boolean": _boolean,
}

_JS_SCALARS: Final[dict[str, _Reader]] = {
    "integer": _integer,
    "Bigint": _suffixed(_INTEGER, "n", int),
    "float": lambda text: float(text) if _PLAIN_DECIMAL.fullmatch(text) else text,
    "Boolean": _boolean,
}


def _scalar(text: str, type_name: str, readers: dict[str, _Reader]) -> Any:
    reader = readers.get(type_name)
    return text if reader is None or not text or len(text) > MOST_DIGITS else reader(text)


def _by_its_looks(text: str, readers: tuple[_Reader, ...]) -> Any:
    """The value of an element whose type nothing tells."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    for reader in readers:
        value = _scalar(text, "", {"": reader})
        if value is not text:
            return value
    return text


_JAVA_LOOKS: Final = (_boolean, *(_JAVA_SCALARS[name] for name in ("integer", "long", "float", "double")))
_JS_LOOKS: Final = (_boolean, _integer, _JAVA_SCALARS["double"])


def _java_item(text: str, item_type: str | None) -> Any:
    if item_type in (None, "any"):
        return _by_its_looks(text, _JAVA_LOOKS)
    return unquoted(text) if item_type in ("String", "char") else _scalar(text, str(item_type), _JAVA_SCALARS)


def _java_list(text: str, item_type: str | None) -> Any:
    found = _ARRAY_LIST_OF.fullmatch(text.strip())
    if found is not None:
        return [_java_item(part, item_type) for part in split_outside(found[1], ",")]
    found = _ARRAY_LIST.fullmatch(text.strip())
    if found is None:
        return text
    return [_java_item(inside.strip(), item_type) for inside in _statements(found[1], "add")]


def _java_map(text: str) -> Any:
    found = _HASH_MAP.fullmatch(text.strip())
    if found is None:
        return text
    pairs = [split_outside(inside, ",") for inside in _statements(found[1], "put")]
    return {unquoted(pair[0]): _by_its_looks(pair[1], _JAVA_LOOKS) for pair in pairs if len(pair) == 2}


def _statements(initializer: str | None, name: str) -> Iterator[str]:
    """What stands in the brackets of each statement ``name(...);``."""
    for statement in split_outside(initializer or "", ";"):
        found = _STATEMENT.fullmatch(statement)
        if found is not None and found[1] == name:
            yield found[2]


def _js_array(text: str, item_type: str | None, depth: int = 0) -> Any:
    text = text.strip()
    found = _JS_ARRAY.fullmatch(text)
    if found is None or depth > DEEPEST_LITERAL:
        return text
    inside = found[1] if found[1] is not None else found[2]
    return [_js_item(part, item_type, depth) for part in split_outside(inside, ",")]


def _js_item(text: str, item_type: str | None, depth: int) -> Any:
    if item_type == "String":
        return unquoted(text)
    scalar = _JS_SCALARS.get(str(item_type))
    return _js_by_its_looks(text, depth) if scalar is None else _scalar(text, "", {"": scalar})


def _js_object(text: str, depth: int = 0) -> Any:
    text = text.strip()
    found = _JS_OBJECT.fullmatch(text)
    if found is None or depth > DEEPEST_LITERAL:
        return text
    pairs = [pair for part in split_outside(found[1], ",") if (pair := _JS_PAIR.fullmatch(part)) is not None]
    return {unquoted(pair[1].strip()): _js_by_its_looks(pair[2].strip(), depth) for pair in pairs}


def _js_by_its_looks(text: str, depth: int) -> Any:
    if text.startswith("["):
        return _js_array(text, None, depth + 1)
    return _js_object(text, depth + 1) if text.startswith("{") else _by_its_looks(text, _JS_LOOKS)
