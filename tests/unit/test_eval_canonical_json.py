"""Canonical JSON is what the standard library writes, for every value, however it is reached."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.eval.canonical_json import dumps_canonical, loads_exact, read_canonical

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def reference(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@given(JSON | st.floats(-1e-3, 1e-3) | st.floats(1e14, 1e18))
def test_same_bytes_as_the_standard_library(value: Any) -> None:
    assert dumps_canonical(value) == reference(value)
    assert loads_exact(reference(value)) == value
    assert read_canonical(reference(value), lambda read: read) == (value, reference(value))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (b'{"b": 1, "a": 2}', b'{"a":2,"b":1}'),
        (b"[0.00006103515625, 0.0001, 10.00001]", b"[6.103515625e-05,0.0001,10.00001]"),
        (b"[1e16, 1e-7, 0.00001, 1.0, -0.0]", b"[1e+16,1e-07,1e-05,1.0,-0.0]"),
        (b"[18446744073709551616, -9223372036854775809]", b"[18446744073709551616,-9223372036854775809]"),
        ('{"ä": "\\u00e9\\u2028"}'.encode(), '{"ä":"é\u2028"}'.encode()),
        (b'"3e8 and 1e-3 in a text"', b'"3e8 and 1e-3 in a text"'),
    ],
)
def test_known_values(text: bytes, canonical: bytes) -> None:
    assert read_canonical(text, lambda read: read)[1] == canonical


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b'"\\ud800"', b"\xff", b"{} {}", b"1e400"])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"line 1|EOF|empty|Expecting|input"):
        read_canonical(text, lambda read: read)


@pytest.mark.parametrize("text", [b"[" * 300 + b"]" * 300, b'{"a":' * 1000 + b"1" + b"}" * 1000])
def test_what_is_nested_too_deeply_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|depth limit exceeded"):
        loads_exact(text)


@dataclasses.dataclass
class Answer:
    text: str


@pytest.mark.parametrize("beside", [0, 1e-7, 2**70, None, "null"])
@pytest.mark.parametrize(
    "value",
    [{1, 2}, datetime.date(2024, 5, 1), datetime.datetime.now(datetime.UTC), datetime.time(1), Answer("yes"), b"x"],
)
def test_what_json_does_not_have_is_a_type_error_whatever_stands_beside_it(value: Any, beside: Any) -> None:
    with pytest.raises(TypeError):
        dumps_canonical({"a": value, "b": beside})


@given(JSON, st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_a_number_that_is_none_is_a_value_error_whatever_stands_beside_it(beside: Any, number: float) -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        dumps_canonical([beside, {"a": number}])


def test_what_is_only_another_kind_of_list_or_dict_is_written_as_that() -> None:
    assert dumps_canonical({"b": (None, 1), "a": OrderedDict(x=None)}) == b'{"a":{"x":null},"b":[null,1]}'
