from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.config.directives import expand_directives
from nemo_gym.config.merging import merge_layers


def expand(*files: dict[str, Any], caller: tuple[dict[str, Any], ...] = (), sketched: tuple[str, ...] = ()) -> Any:
    return expand_directives(merge_layers([*files, *caller]), caller, sketched).tree


def refusal(*files: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        expand(*files)
    return str(caught.value)


MCQA = {"mcqa": {"resources_servers": {"mcqa": {"x": 1, "y": 2}}}}
TAKER = {"mine": {"_inherit_from": "mcqa", "resources_servers": {"mcqa": {"y": 5}}}}


def test_inherit_from_moves_and_its_siblings_win() -> None:
    assert expand(MCQA, TAKER) == {"mine": {"resources_servers": {"mcqa": {"x": 1, "y": 5}}}}


def test_copy_leaves_the_source() -> None:
    tree = expand({"a": {"x": 1, "y": [1]}, "b": {"_copy": "a", "x": 2}})
    assert tree == {"a": {"x": 1, "y": [1]}, "b": {"x": 2, "y": [1]}}
    tree["b"]["y"].append(2)
    assert tree["a"]["y"] == [1]


def test_the_order_of_keys_and_files_does_not_matter() -> None:
    assert expand(TAKER, MCQA) == expand(MCQA, TAKER)


def test_delete_key_drops_what_was_taken_over_at_any_depth() -> None:
    base = {"a": {"x": 1, "y": {"p": 1, "q": 2}, "z": 3}}
    tree = expand(base, {"b": {"_inherit_from": "a", "_delete_key": "x,z", "y": {"_delete_key": ["p"], "r": 3}}})
    assert tree == {"b": {"y": {"q": 2, "r": 3}}}


def test_delete_key_drops_whole_entries_of_lower_files() -> None:
    assert expand(MCQA, {"simple_agent": {"x": 1}}, {"_delete_key": "mcqa"}) == {"simple_agent": {"x": 1}}


def test_a_key_beside_delete_key_replaces_the_one_taken_over() -> None:
    tree = expand({"a": {"x": {"p": 1}}, "b": {"_copy": "a", "_delete_key": "x", "x": {"q": 1}}})
    assert tree["b"] == {"x": {"q": 1}}


def test_string_forms_work_anywhere_and_for_any_value() -> None:
    tree = expand(
        {
            "a": {"b": {"c": 1}, "n": 5, "l": [1, 2]},
            "x": ["${copy:a.b}", {"y": "${copy:a.l.1}"}],
            "z": "${inherit_from:a.n}",
        }
    )
    assert tree == {"a": {"b": {"c": 1}, "l": [1, 2]}, "x": [{"c": 1}, {"y": 2}], "z": 5}


def test_string_form_in_an_inheriting_dict_replaces_and_a_dict_form_is_laid_over() -> None:
    files = {"a": {"j": {"p": 1}}, "k": {"q": 2}}
    assert expand(files, {"b": {"_copy": "a", "j": "${copy:k}"}})["b"] == {"j": {"q": 2}}
    assert expand(files, {"b": {"_copy": "a", "j": {"_copy": "k", "p": 3}}})["b"] == {"j": {"p": 3, "q": 2}}


def test_chains_end_with_all_in_the_last() -> None:
    files = {
        "a": {"_inherit_from": "b", "x": 1},
        "b": {"_inherit_from": "c", "x": 0, "y": 2},
        "c": {"y": 0, "z": 3},
        "d": "${copy:a}",
        "e": {"_copy": "d.z"},
    }
    assert expand(files) == {"a": {"x": 1, "y": 2, "z": 3}, "d": {"x": 1, "y": 2, "z": 3}, "e": 3}


def test_targets_inside_what_is_taken_over_are_found() -> None:
    files = {"a": {"_inherit_from": "b"}, "b": {"c": {"d": 1}}, "e": {"_copy": "a.c", "f": 2}}
    assert expand(files) == {"a": {"c": {"d": 1}}, "e": {"d": 1, "f": 2}}


def test_two_may_inherit_from_one() -> None:
    files = {"a": {"x": 1}, "b": {"_inherit_from": "a", "y": 1}, "c": {"_inherit_from": "a", "y": 2}}
    assert expand(files) == {"b": {"x": 1, "y": 1}, "c": {"x": 1, "y": 2}}


def test_dicts_left_empty_by_a_move_go_with_it() -> None:
    assert expand({"a": {"b": {"c": {"x": 1}}}, "d": {"_inherit_from": "a.b.c"}}) == {"d": {"x": 1}}
    assert expand({"a": {"k": 1, "b": {"x": 1}}, "d": {"_inherit_from": "a.b"}}) == {"a": {"k": 1}, "d": {"x": 1}}


def test_a_target_may_be_named_through_a_key() -> None:
    files = {"which": "b", "s": {"a": {"x": 1}, "b": {"x": 2}}, "t": "${copy:s.${which}}", "u": {"_copy": "s.${which}"}}
    tree = expand(files)
    assert tree["t"] == tree["u"] == {"x": 2}


def test_a_higher_layer_may_cancel_a_directive() -> None:
    assert expand(MCQA, TAKER, {"mine": {"_inherit_from": None}})["mine"] == {"resources_servers": {"mcqa": {"y": 5}}}


def test_keys_laid_over_a_string_form_are_merged_into_what_it_takes() -> None:
    assert expand({"a": {"x": 1, "y": 1}, "b": "${copy:a}"}, {"b": {"y": 2}})["b"] == {"x": 1, "y": 2}


class TestOverridesOfWhatWasMoved:
    """Either name of a moved server may be used; the caller's word stands above the files'."""

    def server(self, **settings: int) -> dict[str, Any]:
        return {"resources_servers": {"mcqa": settings}}

    def settings(self, *caller: dict[str, Any], files: tuple[dict[str, Any], ...] = (MCQA, TAKER)) -> Any:
        return expand(*files, caller=caller)["mine"]["resources_servers"]["mcqa"]

    def test_under_the_new_name(self) -> None:
        assert self.settings({"mine": self.server(y=9, z=1)}) == {"x": 1, "y": 9, "z": 1}

    def test_under_the_old_name_even_where_the_file_sets_the_same_key(self) -> None:
        assert self.settings({"mcqa": self.server(y=9, z=1)}) == {"x": 1, "y": 9, "z": 1}

    def test_the_new_name_wins_over_the_old_one(self) -> None:
        assert self.settings({"mine": self.server(y=7), "mcqa": self.server(y=9, z=1)}) == {"x": 1, "y": 7, "z": 1}

    def test_a_higher_layer_wins_whichever_name_it_uses(self) -> None:
        assert self.settings({"mine": self.server(y=7)}, {"mcqa": self.server(y=9)})["y"] == 9

    def test_through_a_chain(self) -> None:
        files = (
            MCQA,
            {"between": {"_inherit_from": "mcqa", **self.server(y=3)}},
            {"mine": {"_inherit_from": "between", **self.server(y=4)}},
        )
        assert self.settings({"mcqa": self.server(y=9)}, files=files)["y"] == 9
        assert self.settings({"between": self.server(y=8), "mcqa": self.server(y=9)}, files=files)["y"] == 8

    def test_a_copy_is_a_server_of_its_own(self) -> None:
        copied = {"mine": {"_copy": "mcqa", **self.server(y=5)}}
        assert self.settings({"mcqa": self.server(x=8, y=9)}, files=(MCQA, copied)) == {"x": 8, "y": 5}


def test_what_is_to_be_set_is_taken_over_as_such() -> None:
    assert expand({"a": "???", "b": "${copy:a}", "c": {"_copy": "a"}}) == {"a": "???", "b": "???", "c": "???"}


def test_sketched_entries_may_lack_what_is_taken_from_them() -> None:
    files = {
        "judge": {"_copy": "policy_model", "t": {"i": {"x": 1}}},
        "second": {"_copy": "judge.t.k", "y": 1},
        "plain": "${copy:policy_model}",
        "policy_model": {"t": {"i": {"_delete_key": "gone"}}},
    }
    expanded = expand_directives(merge_layers([files]), sketched=("policy_model",))
    assert expanded.tree["judge"] == {"t": {"i": {"x": 1}}}
    assert expanded.tree["second"] == {"y": 1}
    assert expanded.sketched == {"policy_model", "judge", "second", "plain"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"foo": {"_inherit_from": "mcqqa"}, **MCQA},
            "foo (_inherit_from: mcqqa): nothing stands at mcqqa: there is no key 'mcqqa'. Did you mean mcqa?",
        ),
        (
            {"foo": {"_copy": "mcqa.resource_servers.mcqa"}, **MCQA},
            (
                "nothing stands at mcqa.resource_servers.mcqa: mcqa has no key 'resource_servers'. "
                "Did you mean mcqa.resources_servers.mcqa?"
            ),
        ),
        (
            {"foo": [{"x": "${copy:zebra.q}"}]},
            (
                "foo[0].x (${copy:zebra.q}): nothing stands at zebra.q: there is no key 'zebra'. "
                "Name the file that declares it in config_paths."
            ),
        ),
        ({"a": {"x": 1}, "foo": "${copy:a.zebra}"}, "a has no key 'zebra'. It has x."),
        ({"a": {"x": 1}, "foo": "${copy:a.x.y}"}, "nothing stands at a.x.y: a.x is no dict."),
        (
            {"b": {"_copy": "c"}, "c": {"dd": {"e": 1}}, "foo": "${copy:b.dx.e}"},
            "b has no key 'dx'. Did you mean b.dd.e?",
        ),
        ({"foo": {"_copy": "n", "x": 1}, "n": 5}, "foo._copy points at 'n', which is a number, no dict, while"),
        ({"foo": {"_copy": "n", "x": 1}, "n": "???"}, "foo._copy points at 'n', which is not set (???), while"),
        ({"foo": {"_copy": "a", "_inherit_from": "b"}, "a": {}, "b": {}}, "foo has both _inherit_from and _copy"),
        ({"_copy": "a", "a": {}}, "_copy cannot stand at the top level: it is for what one key holds."),
        ({"_delete_key": "ab", "abc": 1}, "there is no key 'ab' in the top level. Did you mean 'abc'?"),
        ({"foo": {"_copy": 5}}, "foo._copy must be the path of what to take over, such as a.b; found 5."),
        ({"foo": {"_copy": "???"}}, "foo._copy must be the path of what to take over"),
        ({"foo": "x ${copy:a} y", "a": 1}, "foo: ${copy:...} must be the whole value"),
        ({"foo": {"_copy": "foo.x", "x": {}}}, "goes round in a circle"),
        ({"foo": {"x": {"_copy": "foo"}}}, "foo.x (_copy: foo): this would put foo into itself."),
        ({"a": {"_copy": "b"}, "b": {"_copy": "a"}}, "goes round in a circle: a -> b -> a."),
        ({"a": "${copy:b}", "b": "${inherit_from:a}"}, "goes round in a circle"),
        ({"a": {"x": {"_copy": "b"}}, "b": {"y": {"_copy": "a"}}}, "goes round in a circle: a -> a.x -> b.y -> a."),
        ({"l": [1], "foo": "${inherit_from:l.0}"}, "an element cannot be moved out of a list"),
        ({"foo": "${copy:s.${nope}}", "s": {}}, "named through ${nope}, which must be a plain text; found nothing."),
        (
            {"a": {"max_steps": 1}, "foo": {"_copy": "a", "_delete_key": "max_step"}},
            "foo._delete_key names 'max_step', but there is no key 'max_step' in foo. Did you mean 'max_steps'?",
        ),
    ],
)
def test_directives_that_cannot_be_carried_out_name_both_ends(files: dict[str, Any], expected: str) -> None:
    assert expected in refusal(files)


def test_the_result_says_what_was_taken_over_by_whom() -> None:
    moved = expand_directives(merge_layers([MCQA, TAKER])).moved
    assert moved == {("mcqa",): [("mine",)]}
