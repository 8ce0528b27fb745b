from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config import ConfigError
from nemo_gym.config.merging import Deletions, merge, merge_layers
from nemo_gym.config.paths import ABSENT, how_to_set, iter_leaves, join, lookup

KEYS = st.sampled_from(["a", "b", "c", "d"])
TREES = st.recursive(
    st.integers(0, 9) | st.sampled_from([None, "x", "???"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
CONFIGS = st.dictionaries(KEYS, TREES, max_size=4)
MODEST = settings(deadline=None, max_examples=100)


def test_dicts_are_merged_and_everything_else_is_replaced() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": {"z": 1}}
    over = {"a": {"y": [3], "w": None}, "b": {"q": 1}, "c": None}
    assert merge(base, over) == {"a": {"x": 1, "y": [3], "w": None}, "b": {"q": 1}, "c": None}


def test_to_be_set_replaces_no_value() -> None:
    assert merge({"a": 1, "b": {"c": 2}}, {"a": "???", "b": "???", "d": "???"}) == {"a": 1, "b": {"c": 2}, "d": "???"}
    assert merge({"a": "???", "b": None}, {"a": 1, "b": "???"}) == {"a": 1, "b": "???"}


@MODEST
@given(CONFIGS, CONFIGS)
def test_merging_changes_nothing_that_is_passed_in(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = copy.deepcopy((base, over))
    result = merge(base, over)
    for path, _ in iter_leaves(result):
        parent = lookup(result, path[:-1])
        parent[int(path[-1]) if isinstance(parent, list) else path[-1]] = "changed"
    assert (base, over) == before


@MODEST
@given(st.lists(CONFIGS, max_size=4))
def test_the_last_layer_that_sets_a_value_wins(layers: list[dict[str, Any]]) -> None:
    result = merge_layers(layers)
    if layers:
        for path, value in iter_leaves(layers[-1]):
            if value != "???":
                assert lookup(result, path) == value
    assert merge_layers([result]) == result
    assert merge_layers([result, result]) == result
    assert merge_layers([{}, *layers, {}]) == result
    expected: dict[str, Any] = {}
    for layer in layers:
        expected = merge(expected, layer)
    assert result == expected


@MODEST
@given(CONFIGS, CONFIGS)
def test_every_key_of_every_layer_is_kept(first: dict[str, Any], second: dict[str, Any]) -> None:
    result = merge_layers([first, second])
    assert list(result) == list(dict.fromkeys([*first, *second]))


def test_a_delete_takes_keys_of_lower_layers_away() -> None:
    layers = [{"a": {"x": 1, "y": 2, "z": 3}}, {"a": {"_delete_key": "x, y", "w": 4}}]
    assert merge_layers(layers) == {"a": {"z": 3, "w": 4, "_delete_key": Deletions({"x": True, "y": True})}}


def test_a_key_beside_its_delete_replaces_the_lower_one_as_a_whole() -> None:
    layers = [{"a": {"x": {"p": 1}}}, {"a": {"_delete_key": "x", "x": {"q": 2}}}]
    assert merge_layers(layers)["a"]["x"] == {"q": 2}


def test_with_nothing_below_a_delete_drops_the_key_beside_it_and_a_later_layer_may_set_it_again() -> None:
    first = {"a": {"x": 1, "y": 2, "_delete_key": ["x"]}}
    assert "x" not in merge_layers([first])["a"]
    assert merge_layers([first, {"a": {"x": 5}}])["a"]["x"] == 5


@pytest.mark.parametrize("value", [5, {"x": 1}, [1], [""], "x,,y"])
def test_a_delete_that_names_no_keys_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r'a\.b\._delete_key must name keys, as in "x,y" or \[x, y\]; found'):
        merge_layers([{"a": {"b": {"_delete_key": value}}}])


def test_keys_laid_over_a_reference_are_laid_over_what_it_refers_to() -> None:
    over = {"a": {"x": 5}}
    assert merge_layers([{"a": "${copy:b.c}"}, over]) == {"a": {"_copy": "b.c", "x": 5}}
    assert merge_layers([{"a": "${inherit_from: b.c }"}, over]) == {"a": {"_inherit_from": "b.c", "x": 5}}
    assert merge_layers([{"a": "${b}", "b": {"y": 1}}, over])["a"] == {"_copy": "b", "x": 5}
    assert merge_layers([{"a": "${b}", "b": 1}, over])["a"] == {"x": 5}
    assert merge_layers([{"a": "plain"}, over])["a"] == {"x": 5}


def test_lookup_steps_into_dicts_and_lists() -> None:
    tree = {"a": [{"b": None}], "1": 2}
    assert lookup(tree, ("a", "0", "b")) is None
    assert lookup(tree, ("1",)) == 2
    assert lookup(tree, ()) is tree
    for path in (("a", "1"), ("a", "b"), ("a", "0", "b", "c"), ("x",)):
        assert lookup(tree, path) is ABSENT


def test_paths_are_written_as_people_write_them() -> None:
    assert join(("a", "b", "0", "c")) == "a.b[0].c"
    assert how_to_set(("a", "b")) == 'overrides={"a": {"b": VALUE}} in Python, or ++a.b=VALUE on the command line'
    in_list = how_to_set(("a", "0", "c"), {"a": [{"c": 1}]})
    assert in_list == 'overrides={"a": [...]} in Python, or ++a=[...] on the command line'
    assert "config file" in how_to_set(("a", "gpt-4.1"))
