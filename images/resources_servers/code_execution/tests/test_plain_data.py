from __future__ import annotations

import itertools
import json
import math
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest

from images.resources_servers.code_execution import plain_data
from images.resources_servers.code_execution.plain_data import PlainDataError, Unknown

Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 3


class Loud(str):
    def __str__(self) -> str:
        return "loud"


def travelled(value: Any, **options: Any) -> Any:
    return plain_data.decode(plain_data.loads(plain_data.dumps(plain_data.encode(value, **options))))


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**63, 2**64 - 1, 2**64, 0.1, -0.0, 1e308, math.inf, 5e-324, "", "a\n\0é\ud800😀",
        [], [1, [2, [3]]], (), (1,), (1, "a", None), {1, 2}, set(), frozenset({1, (2, 3)}), {},
        {"a": 1, (1, 2): [3]}, {1: {2: {3}}},
        {"tuple": [1]}, b"\0\xff", 1 + 2j, range(1, 10, 3), Decimal("1.10"), Fraction(2, 3), deque([1, 2]),
    ],
    ids=repr,
)  # fmt: skip
def test_values_arrive_as_they_were(value: Any) -> None:
    arrived = travelled(value)
    assert repr(arrived) == repr(value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_integers_may_be_of_any_length() -> None:
    assert travelled([-(10**5000)]) == [-(10**5000)]


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (Point(1, 2), (1, 2)), (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(a=1), {"a": 1}), (Colour.RED, 3),
        (Loud("quiet"), "quiet"), (bytearray(b"x"), b"x"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_of_a_subclass_becomes_one_of_its_base(value: Any, base: Any) -> None:
    arrived = travelled(value)
    assert arrived == base
    assert type(arrived) is type(base)


def test_what_is_read_once_is_read_once_on_the_other_side() -> None:
    arrived = travelled(x * x for x in range(4))
    assert arrived != [0, 1, 4, 9]
    assert list(arrived) == [0, 1, 4, 9]
    assert list(arrived) == []
    assert list(travelled(zip("ab", (1, 2), strict=True))) == [("a", 1), ("b", 2)]
    assert travelled({1: 2}.keys()) == {1}
    assert list(travelled({1: 2}.values())) == [2]
    assert travelled({1: 2}.items()) == {(1, 2)}
    assert math.isnan(travelled(math.nan))


@pytest.mark.parametrize("value", [len, object(), print, Exception("x"), type, ..., NotImplemented])
def test_other_types_are_refused_or_unknown(value: Any) -> None:
    with pytest.raises(PlainDataError, match="cannot be passed to a program"):
        plain_data.encode([value])
    (arrived,) = travelled([value], strict=False)
    assert type(arrived) is Unknown
    assert arrived != value


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PlainDataError, match="holds itself"):
        plain_data.encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[", b"\xff\xfe", b"{} {}", b"9" * 5000, b"[" * 100_000, b"nul",
    ],
    ids=lambda data: repr(data[:10]),
)  # fmt: skip
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(PlainDataError):
        plain_data.loads(data)


@pytest.mark.parametrize(
    "data",
    [
        {}, {"a": 1, "b": 2}, {"other": []}, {"tuple": 1}, {"tuple": "ab"}, {"int": 5}, {"int": "xyz"}, {"int": None},
        {"set": [[1]]}, {"dict": [1]}, {"dict": [[1]]}, {"dict": [[[], 1]]}, {"bytes": "0"}, {"complex": [1, 2, 3]},
        {"decimal": "x"}, {"fraction": [1, 0]}, {"range": [1, 2, 0]}, {"range": ["a"]}, {"keys": [[1]]}, {"items": [1]},
        {"__class__": "os.system"}, [{"int": ""}],
    ],
    ids=json.dumps,
)  # fmt: skip
def test_what_is_no_value_is_refused(data: Any) -> None:
    with pytest.raises(PlainDataError):
        plain_data.decode(data)


def test_values_that_are_nested_deep_are_refused() -> None:
    data: Any = []
    for _ in itertools.repeat(None, 100_000):
        data = [data]
    with pytest.raises(PlainDataError):
        plain_data.decode(data)
    with pytest.raises(PlainDataError):
        plain_data.encode(data)
    while data:  # freed one by one: taking it apart at once would be as deep
        data = data[0]
