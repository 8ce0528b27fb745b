"""The rules of comparison, on calls made up for each."""

from __future__ import annotations

from typing import Any

import pytest

from images.resources_servers.function_calls.matching import (
    Call,
    ExpectedArgument,
    ExpectedCall,
    Language,
    calls_problem,
    value_problem,
)


def argument(type_name: str, *accepted: Any, items: str | None = None, required: bool = True) -> ExpectedArgument:
    return ExpectedArgument(type=type_name, items=items, accepted=list(accepted), required=required)


PLACES = [[{"city": ["Rome"], "days": [2, ""]}, {"city": ["Pisa"], "days": [1]}]]

RIGHT: list[tuple[ExpectedArgument, Any]] = [
    (argument("integer", 5), 5),
    (argument("integer", 5, 6), 6),
    (argument("integer", None, ""), None),
    (argument("integer", "count"), "count"),
    (argument("float", 5.0), 5),
    (argument("float", 5), 5.0),
    (argument("boolean", True), True),
    (argument("string", "New York, NY"), "new york ny"),
    (argument("string", "2024-01-02"), "2024/01/02"),
    (argument("string", "it's"), 'It"s'),
    (argument("string", "a", ""), ""),
    (argument("string", True), True),
    (argument("string", None, "as it is"), "as it is"),
    (argument("any", "x"), "X"),
    (argument("array", [1, 2], [2, 1], items="integer"), [2, 1]),
    (argument("array", ["New York", "LA"], items="string"), ["new-york", "la"]),
    (argument("array", [1, 2], items="float"), [1, 2]),
    (argument("array", [1.5], items="float"), [1.5]),
    (argument("array", ["a"], "", items="string"), []),
    (argument("array", [[1, 2], [3]], items="array"), [[1, 2], [3]]),
    (argument("array", "rows", items="integer"), "rows"),
    (argument("tuple", [1.5, 2.5], items="float"), [1.5, 2.5]),
    (argument("tuple", [1.5, 2.5], items="float"), (1.5, 2.5)),
    (argument("dict", {"city": ["Rome"], "days": [2, ""]}), {"city": "rome"}),
    (argument("dict", "", {"city": ["Rome", "Roma"], "days": [2]}), {"days": 2, "city": "Roma"}),
    (argument("dict", {"range": [[1, 2]]}), {"range": [1, 2]}),
    (argument("array", *PLACES, items="dict"), [{"city": "Rome"}, {"city": "Pisa", "days": 1}]),
]

WRONG: list[tuple[ExpectedArgument, Any]] = [
    (argument("integer", 5), 6),
    (argument("integer", 5), "5"),
    (argument("integer", 5), 5.5),
    (argument("integer", 1), True),
    (argument("integer", 5), None),
    (argument("integer", "count"), "Count"),
    (argument("integer", ""), 0),
    (argument("float", 5.0), "5.0"),
    (argument("float", 5.0), 5.1),
    (argument("boolean", True), False),
    (argument("boolean", True), "True"),
    (argument("boolean", True), 1),
    (argument("string", "Rome"), "Roma"),
    (argument("string", "Rome"), ["Rome"]),
    (argument("string", "5"), 5),
    (argument("string", None, "as it is"), "As it is"),
    (argument("string", "a:b"), "ab"),
    (argument("array", [1, 2], items="integer"), [2, 1]),
    (argument("array", [1, 2], items="integer"), [1]),
    (argument("array", [1, 2], items="integer"), [1, 2, 3]),
    (argument("array", [1, 2], items="integer"), ["1", "2"]),
    (argument("array", [1.5, 2.0], items="float"), [1.5, 2]),
    (argument("array", [1, 2], items="integer"), 1),
    (argument("array", ["a"], items="string"), []),
    (argument("array", ["a"], items="string"), "a"),
    (argument("array", items="string"), []),
    (argument("array", [1, 2], items="integer"), (1, 2)),
    (argument("dict", {"city": ["Rome"], "days": [2]}), {"city": "Rome"}),
    (argument("dict", {"city": ["Rome"]}), {"city": "Rome", "days": 2}),
    (argument("dict", {"city": ["Rome"]}), {"city": "Pisa"}),
    (argument("dict", {"city": ["Rome"]}), [{"city": "Rome"}]),
    (argument("dict", {"city": ["Rome"]}), {}),
    (argument("dict", ""), {}),
    (argument("array", *PLACES, items="dict"), [{"city": "Pisa", "days": 1}, {"city": "Rome"}]),
    (argument("array", *PLACES, items="dict"), [{"city": "Rome"}]),
    (argument("array", *PLACES, items="dict"), ["Rome", "Pisa"]),
]


@pytest.mark.parametrize(("expected", "value"), RIGHT, ids=range(len(RIGHT)))
def test_values_that_are_right(expected: ExpectedArgument, value: Any) -> None:
    assert value_problem(value, expected, "python") is None


@pytest.mark.parametrize(("expected", "value"), WRONG, ids=range(len(WRONG)))
def test_values_that_are_wrong(expected: ExpectedArgument, value: Any) -> None:
    assert value_problem(value, expected, "python") is not None


@pytest.mark.parametrize(
    ("language", "expected", "value", "right"),
    [
        ("java", argument("integer", 5), "5", True),
        ("java", argument("integer", 5), 5, False),
        ("java", argument("integer", "Type.ONE"), "Type.ONE", True),
        ("java", argument("integer", "Type.ONE"), "type.one", False),
        ("java", argument("long", 5), "5L", True),
        ("java", argument("long", 5), "5", False),
        ("java", argument("String", "Customers"), "customers", True),
        ("java", argument("String", "Customers"), '"Customers"', False),
        ("java", argument("Array", ["-v", "-p"], items="String"), 'new String[]{"-v", "-p"}', True),
        ("java", argument("Array", ["-v", "-p"], items="String"), "new String[]{-v, -p}", True),
        ("java", argument("Array", ["-v", "-p"], items="String"), 'new String[]{"-v"}', False),
        ("java", argument("Array", ["-v", "-p"], items="String"), '["-v", "-p"]', False),
        ("java", argument("Array", "args", items="String"), "args", True),
        ("java", argument("ArrayList", ["id", 42], items="any"), 'new ArrayList<>(Arrays.asList("id", 42))', True),
        ("java", argument("ArrayList", ["id", 42], items="any"), 'new ArrayList<>(Arrays.asList("id", 43))', False),
        ("java", argument("HashMap", {"n": [50]}), 'new HashMap<>() {{ put("n", 50); }}', True),
        ("java", argument("HashMap", {"n": [50]}), 'new HashMap<>() {{ put("n", "50"); }}', False),
        ("java", argument("HashMap", {"format": "millis"}), 'new HashMap<>() {{ put("format", "millis"); }}', True),
        ("java", argument("any", 20.5, "20.5"), "20.5", True),
        ("javascript", argument("String", "id"), "'id'", True),
        ("javascript", argument("Boolean", True), "true", True),
        ("javascript", argument("Boolean", True), True, False),
        ("javascript", argument("dict", {}, ""), "{}", True),
        ("javascript", argument("dict", {"role": ["admin"]}), "{role: 'Admin'}", True),
        ("javascript", argument("dict", {"role": ["admin"]}), "{role: 'user'}", False),
        ("javascript", argument("array", [60, 30], items="float"), "[60, 30.0]", True),
        ("javascript", argument("array", [60, 30], items="float"), "[60, '30']", False),
    ],
)  # fmt: skip
def test_values_of_other_languages_are_literals(
    language: Language, expected: ExpectedArgument, value: Any, right: bool
) -> None:
    assert (value_problem(value, expected, language) is None) is right


WEATHER = ExpectedCall(
    name="get_weather",
    arguments={
        "city": argument("string", "Rome"),
        "unit": argument("string", "celsius", "", required=False),
        "days": argument("integer", 3, required=False),
    },
)


def problem(*calls: tuple[str, dict[str, Any]], expected: tuple[ExpectedCall, ...] = (WEATHER,)) -> str | None:
    return calls_problem([Call(*call) for call in calls], expected, "python")


def test_a_call_is_right_with_and_without_what_may_be_left_out() -> None:
    assert problem(("get_weather", {"city": "Rome", "days": 3})) is None
    assert problem(("get_weather", {"days": 3, "unit": "Celsius", "city": "rome"})) is None


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([], "0 calls were made; expected 1"),
        ([("get_weather", {"city": "Rome", "days": 3})] * 2, "2 calls were made; expected 1"),
        ([("weather", {"city": "Rome", "days": 3})], "the function called is 'weather'; expected 'get_weather'"),
        ([("get_weather", {"days": 3})], "the argument 'city' is missing"),
        # One that the function does not demand, but that no accepted value lets be left out.
        ([("get_weather", {"city": "Rome"})], "the argument 'days' is missing"),
        ([("get_weather", {"city": "Rome", "days": 3, "at": 1})], "the argument 'at' is not expected"),
        ([("get_weather", {"city": "Rome", "days": "3"})], "the argument 'days' is a str; expected integer"),
        ([("get_weather", {"city": "Rome", "days": 4})], "the argument 'days' is 4, which is not accepted"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(calls: list[tuple[str, dict[str, Any]]], text: str) -> None:
    assert problem(*calls) == text


def test_an_argument_that_must_be_given_and_has_no_accepted_value_makes_every_call_wrong() -> None:
    expected = ExpectedCall(name="f", arguments={"a": argument("string")})
    assert problem(("f", {}), expected=(expected,)) == "the argument 'a' is missing"
    assert problem(("f", {"a": ""}), expected=(expected,)) == "the argument 'a' is '', which is not accepted"


def test_parallel_calls_may_come_in_any_order_and_each_serves_once() -> None:
    expected = tuple(ExpectedCall(name="f", arguments={"n": argument("integer", n)}) for n in (1, 2, 3))
    one, two, three = (("f", {"n": n}) for n in (1, 2, 3))
    assert problem(three, one, two, expected=expected) is None
    assert problem(one, one, two, expected=expected) == (
        "no call is left for the expected f: the argument 'n' is 1, which is not accepted"
    )
    assert problem(one, two, expected=expected) == "2 calls were made; expected 3"
    other = ("g", {"n": 3})
    assert problem(one, two, other, expected=expected) is not None


def test_calls_are_paired_so_that_all_fit_when_they_can() -> None:
    either = ExpectedCall(name="f", arguments={"n": argument("integer", 1, 2)})
    first = ExpectedCall(name="f", arguments={"n": argument("integer", 1)})
    for calls in ([1, 2], [2, 1]):
        assert problem(*(("f", {"n": n}) for n in calls), expected=(either, first)) is None
        assert problem(*(("f", {"n": n}) for n in calls), expected=(first, either)) is None
    assert problem(("f", {"n": 2}), ("f", {"n": 2}), expected=(either, first)) is not None
