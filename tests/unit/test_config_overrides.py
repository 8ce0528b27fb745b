from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config import ConfigError
from nemo_gym.config.overrides import checked_overrides, parse_cli_overrides
from nemo_gym.config.yaml_files import dump_yaml, parse_yaml_dict


class Text(str):
    pass


class Level(enum.IntEnum):
    HIGH = 1


def refusal(overrides: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        checked_overrides(overrides)
    return str(caught.value)


def test_everything_yaml_can_hold_is_taken() -> None:
    overrides = {"a": None, "b": True, "c": 1, "d": 1.5, "e": "x", "f": [1, [2], {"g": None}], "h": {"i": {}}}
    assert checked_overrides(overrides) == overrides
    assert checked_overrides(None) == {}
    assert checked_overrides({"t": (1, 2)}) == {"t": [1, 2]}


def test_the_result_is_the_callers_no_more() -> None:
    given_dict: dict[str, Any] = {"a": {"b": [1]}}
    result = checked_overrides(given_dict)
    given_dict["a"]["b"].append(2)
    assert result == {"a": {"b": [1]}}


@pytest.mark.parametrize(
    ("overrides", "place", "nested"),
    [
        ({"judge.model": 1}, "Override key 'judge.model' has a dot", "Write it nested: {'judge': {'model': ...}}."),
        ({"a": {"b.c.d": 1}}, "Override key 'b.c.d' in 'a' has a dot", "{'b': {'c': {'d': ...}}}"),
        ({"a": [1, {"x": [{"b.c": {}}]}]}, "Override key 'b.c' in 'a[1].x[0]' has a dot", "{'b': {'c': {...}}}"),
        ({"a": ({"b.c": 1},)}, "Override key 'b.c' in 'a[0]' has a dot", "a[0].b.c=... is a path"),
        ({"a..b": 1}, "Override key 'a..b' has a dot", "which a key cannot have"),
        ({".a": 1}, "Override key '.a' has a dot", "which a key cannot have"),
    ],
)
def test_dotted_keys_are_refused_at_any_depth_with_what_was_meant(overrides: Any, place: str, nested: str) -> None:
    message = refusal(overrides)
    assert message.startswith(place)
    assert nested in message


def test_a_refusal_never_shows_the_value() -> None:
    assert "sk-secret" not in refusal({"policy.api_key": "sk-secret"})
    assert "sk-secret" not in refusal({"policy_api_key": {"sk-secret"}})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({1: 2}, "Override key 1 is an int; keys must be strings. Write '1'."),
        ({"a": [{None: 2}]}, "Override key None in 'a[0]' is a NoneType; keys must be strings."),
        ({"a": {"": 2}}, "Override with an empty key in 'a'"),
        ({"a": {"p": Path("x/y")}}, "Override a.p is a PosixPath, which YAML cannot hold."),
        ({"a": {"p": Path("x/y")}}, "Write str(...): 'x/y'."),
        (
            {"a": [{1}]},
            "Override a[0] is a set, which YAML cannot hold. Needed: None, bool, int, float, str, a list or a dict.",
        ),
        ({"a": b"x"}, "Override a is a bytes, which YAML cannot hold."),
        ({"a": object()}, "Override a is an object, which YAML cannot hold."),
        ({"a": Text("x")}, "Override a is a Text, which YAML cannot hold."),
        ({"a": Level.HIGH}, "Write int(...)."),
        ({"a": lambda: 1}, "Override a is a function, which YAML cannot hold."),
        ({"a": {"b": float("nan")}}, "Override a.b is nan; servers receive their configuration as JSON"),
        ({"a": [float("-inf")]}, "Override a[0] is -inf;"),
        (["a=1"], "Overrides must be a nested dict such as"),
        ("a=1", "Overrides must be a nested dict such as"),
    ],
)
def test_what_yaml_cannot_hold_is_refused_with_its_path(overrides: Any, expected: str) -> None:
    assert expected in refusal(overrides)


def test_endless_nesting_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert refusal(deep) == "The overrides are nested too deeply to be read."


def test_circles_are_refused() -> None:
    circle: dict[str, Any] = {"a": {}}
    circle["a"]["b"] = [circle["a"]]
    assert refusal(circle) == "Override a.b[0] contains itself; YAML cannot hold that."
    shared = {"x": 1}
    assert checked_overrides({"a": shared, "b": [shared]}) == {"a": {"x": 1}, "b": [{"x": 1}]}


KEYS = st.text("abc_-9", min_size=1, max_size=4)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=100)
@given(TREES)
def test_checking_changes_nothing_and_yaml_holds_what_passes(overrides: dict[str, Any]) -> None:
    checked = checked_overrides(overrides)
    assert checked == overrides
    assert checked_overrides(checked) == checked
    assert parse_yaml_dict(dump_yaml(checked), "f") == checked


@settings(deadline=None, max_examples=100)
@given(TREES, st.lists(KEYS, max_size=3), st.sampled_from(["x.y", "x.", ".x", "."]))
def test_a_dotted_key_is_found_wherever_it_is_put(tree: dict[str, Any], path: list[str], dotted: str) -> None:
    node: Any = {dotted: tree}
    for step in reversed(path):
        node = {step: [node]}
    with pytest.raises(ConfigError, match="has a dot in it"):
        checked_overrides({**tree, "z": node})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a=1", "+b=x", "++c.d.e=true"], {"a": 1, "b": "x", "c": {"d": {"e": True}}}),
        (["a.b=1", "a.c=2", "a.b=3"], {"a": {"b": 3, "c": 2}}),
        (["a=", "b=null", "c=~", "d='1'", 'e="x # y"'], {"a": "", "b": None, "c": None, "d": "1", "e": "x # y"}),
        (["a=[1, two, {x: 3}]", "b={c: {d: e}}"], {"a": [1, "two", {"x": 3}], "b": {"c": {"d": "e"}}}),
        (
            ["a=http://h:1/v1", "b=k: v # w", "c=x=y", "d=*x", "e=!y"],
            {"a": "http://h:1/v1", "b": "k: v # w", "c": "x=y", "d": "*x", "e": "!y"},
        ),
        (["a=1e-5", "b=010", "c=1.2.3", "d=2024-01-02"], {"a": 1e-5, "b": "010", "c": "1.2.3", "d": "2024-01-02"}),
        (["a=???", "b=${c.d}"], {"a": "???", "b": "${c.d}"}),
        (
            ["policy_api_key=12345", "policy_model_name=1e3", "x.policy_api_key=1"],
            {"policy_api_key": "12345", "policy_model_name": "1e3", "x": {"policy_api_key": 1}},
        ),
        (["policy_api_key=null"], {"policy_api_key": None}),
        (["a.b=1", "a=5"], {"a": 5}),
        (["a={b: 1}", "a.c=2"], {"a": {"b": 1, "c": 2}}),
        ([], {}),
    ],
)
def test_the_command_lines_spelling(arguments: list[str], expected: dict[str, Any]) -> None:
    assert parse_cli_overrides(arguments) == expected


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("a", "Cannot read the override 'a': needed key=value"),
        ("=1", "Cannot read the override key ''"),
        ("a..b=1", "Cannot read the override key 'a..b': needed names joined by single dots"),
        (".a=1", "Cannot read the override key '.a'"),
        (" a=1", "Cannot read the override key ' a'"),
        ("~a=1", "To drop the key a.b, type ++a._delete_key=b."),
        ("a={b.c: 1}", "Override key 'b.c' in 'a' has a dot in it"),
        ("a.b=[1", "override a.b, line 1"),
        ("a={x: ???}", "Put ??? in quotes"),
        ("a=[.nan]", "needed: a finite number"),
    ],
)
def test_arguments_that_cannot_be_read(argument: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cli_overrides([argument])
    assert expected in str(caught.value)
