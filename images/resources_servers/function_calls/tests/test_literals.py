from __future__ import annotations

import time
from typing import Any

import pytest

from images.resources_servers.function_calls.literals import java_value, javascript_value, split_outside

MAP = "new HashMap<String, Object>()"


@pytest.mark.parametrize(
    ("text", "type_name", "items", "value"),
    [
        ("5", "integer", None, 5),
        ("-5", "short", None, -5),
        ("5", "byte", None, 5),
        ("5L", "long", None, 5),
        ("5l", "long", None, 5),
        ("2.5f", "float", None, 2.5),
        ("3F", "float", None, 3.0),
        ("2.5", "double", None, 2.5),
        ("1e-3", "double", None, 0.001),
        ("true", "boolean", None, True),
        ("false", "boolean", None, False),
        ('"a b"', "String", None, '"a b"'),
        ("new Widget(1, 2)", "any", None, "new Widget(1, 2)"),
        ("new ArrayList<>(Arrays.asList(1L, 2L))", "ArrayList", "long", [1, 2]),
        ('new ArrayList<String>(Arrays.asList("a, b", "c)"));', "ArrayList", "String", ["a, b", "c)"]),
        ("new ArrayList<Integer>() {{ add(1); add(-2); }}", "ArrayList", "integer", [1, -2]),
        ('new ArrayList<>(Arrays.asList("id", 42, true, 2.5, x))', "ArrayList", "any", ["id", 42, True, 2.5, "x"]),
        ("new ArrayList<>()", "ArrayList", "String", []),
        ("new int[]{1, 2,\n 3}", "Array", "integer", [1, 2, 3]),
        ('new String[] { "-v", "--no" }', "Array", "String", ["-v", "--no"]),
        ("new char[]{'a', 'b'}", "Array", "char", ["a", "b"]),
        ("new int[]{}", "Array", "integer", []),
        (MAP + ' {{ put("limit", 50); put("who", "a;b, c"); put("on", true); }}', "HashMap", None,
         {"limit": 50, "who": "a;b, c", "on": True}),
        (MAP + ' {{ put("big", 5L); put("f", 1.5f); put("var", other); }}', "HashMap", None,
         {"big": 5, "f": 1.5, "var": "other"}),
        (MAP, "HashMap", None, {}),
        (MAP + " {}", "HashMap", None, {}),
        (MAP + " {{ }}", "HashMap", None, {}),
    ],
)  # fmt: skip
def test_java_literals(text: str, type_name: str, items: str | None, value: Any) -> None:
    assert java_value(text, type_name, items) == value
    assert type(java_value(text, type_name, items)) is type(value)


@pytest.mark.parametrize(
    ("text", "type_name"),
    [
        ("ResultSet.CONCUR_READ_ONLY", "integer"),
        ("5", "long"),
        ("2.5", "float"),
        ("2.5f", "double"),
        ("True", "boolean"),
        ("", "integer"),
        ("9" * 5000, "integer"),
        ("envVariables", "HashMap"),
        ("[1, 2]", "Array"),
        ("Arrays.asList(1, 2)", "ArrayList"),
        ("new int[]{1, 2} + x", "Array"),
        (MAP + ' {{ put("a", 1); }', "HashMap"),
        ("new ArrayList<>(Arrays.asList(1, 2)", "ArrayList"),
    ],
)
def test_what_is_no_java_literal_of_the_type_stays_a_text(text: str, type_name: str) -> None:
    assert java_value(text, type_name, "integer") == text


@pytest.mark.parametrize(
    ("text", "type_name", "items", "value"),
    [
        ("5", "integer", None, 5),
        ("5n", "Bigint", None, 5),
        ("3", "float", None, 3.0),
        ("-9.81", "float", None, -9.81),
        ("true", "Boolean", None, True),
        ("'a'", "String", None, "a"),
        ('"a"', "String", None, "a"),
        ("a", "String", None, "a"),
        ('"a"', "any", None, '"a"'),
        ("[1, 2]", "array", "integer", [1, 2]),
        ("[10, 2.5]", "array", "float", [10.0, 2.5]),
        ("new Array(1n, 2n)", "array", "Bigint", [1, 2]),
        ("['a, b', \"c\"]", "array", "String", ["a, b", "c"]),
        ("[[1, 2], [3]]", "array", "array", [[1, 2], [3]]),
        ('[{"a": 1, "b": [2]}]', "array", "dict", [{"a": 1, "b": [2]}]),
        ("[1, 'two', true, x]", "array", None, [1, "two", True, "x"]),
        ("[]", "array", "String", []),
        ("{}", "dict", None, {}),
        ("{\n  method: 'GET',\n  'max-age': 5,\n  \"on\": false\n};", "dict", None,
         {"method": "GET", "max-age": 5, "on": False}),
        ('{"a:b": {c: ["http://x/?q=1,2"]}, f: go(1, 2)}', "dict", None,
         {"a:b": {"c": ["http://x/?q=1,2"]}, "f": "go(1, 2)"}),
        ("{a: '5'}", "dict", None, {"a": "5"}),
    ],
)  # fmt: skip
def test_javascript_literals(text: str, type_name: str, items: str | None, value: Any) -> None:
    assert javascript_value(text, type_name, items) == value
    assert type(javascript_value(text, type_name, items)) is type(value)


@pytest.mark.parametrize(
    ("text", "type_name"),
    [("5.5", "integer"), ("5", "Bigint"), ("1e5", "float"), ("True", "Boolean"), ("a, b", "array"), ("[1, 2", "array"),
     ("[1]x", "array"), ("options", "dict"), ("{a: 1", "dict")],
)  # fmt: skip
def test_what_is_no_javascript_literal_of_the_type_stays_a_text(text: str, type_name: str) -> None:
    assert javascript_value(text, type_name, "integer") == text


def test_parts_are_split_outside_of_quotes_and_brackets() -> None:
    assert split_outside('a, \'b, c\', (d, [e, f]), "g\\", h",, ', ",") == ["a", "'b, c'", "(d, [e, f])", '"g\\", h"']


@pytest.mark.parametrize("type_name", ["array", "dict", "String", "integer", "float"])
@pytest.mark.parametrize(
    "text", ["[" * 4000, "[" * 2000 + "]" * 2000, "{a:" * 1000, "'" * 4000, "1" * 4000, "[1,]" * 1000]
)
def test_hostile_javascript_is_read_at_once(text: str, type_name: str) -> None:
    began = time.monotonic()
    javascript_value(text, type_name, "array")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("type_name", ["ArrayList", "Array", "HashMap", "long", "double"])
@pytest.mark.parametrize(
    "text", ["new ArrayList<" * 280, "new ArrayList<>(" + " " * 3900, MAP + "{{" * 1900, "new HashMap<" + ">" * 3900,
             "new int[]{" + "(" * 3900 + "}", "1" * 4000, "new ArrayList<>(Arrays.asList(" + ")" * 3900],
)  # fmt: skip
def test_hostile_java_is_read_at_once(text: str, type_name: str) -> None:
    began = time.monotonic()
    java_value(text, type_name, "integer")
    assert time.monotonic() - began < 20


def test_a_longer_text_than_any_literal_stays_one() -> None:
    text = "[" + "1, " * 2000 + "1]"
    assert javascript_value(text, "array", "integer") == text
    assert java_value(f"new int[]{{{text}}}", "Array", "integer") == f"new int[]{{{text}}}"
