from __future__ import annotations

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.rows import (
    attempt_of,
    check_rollout_id,
    find_agent_name,
    new_rollout_id,
    repeat_id,
    repeated_rows,
    row_key,
    without_bookkeeping,
)
from tests.unit.fake_gym import make_row


@pytest.mark.parametrize("rollout_id", ["a", "0", "A.b_c-d", "x" * 300, "9.", "a-r0"])
def test_rollout_ids_that_may_be(rollout_id: str) -> None:
    assert check_rollout_id(rollout_id) == rollout_id


@pytest.mark.parametrize("rollout_id", ["", ".a", "_a", "-a", "a b", "a/b", "ä", "a\n", "\na", 7, None, b"a"])
def test_rollout_ids_that_may_not(rollout_id: object) -> None:
    with pytest.raises(ConfigError, match="rollout id"):
        check_rollout_id(rollout_id)


def test_fresh_ids_are_valid_and_differ() -> None:
    ids = {check_rollout_id(new_rollout_id()) for _ in range(100)}
    assert len(ids) == 100


def test_one_repeat_keeps_the_id_and_several_are_numbered() -> None:
    assert repeat_id("x", 0, 1) == "x"
    assert [repeat_id("x", n, 3) for n in range(3)] == ["x-r0", "x-r1", "x-r2"]


def test_repeats_stand_together_and_are_numbered() -> None:
    rows = repeated_rows([make_row("a", 0), make_row("b", 4)], 2)
    assert [row_key(row) for row in rows] == [(0, 0), (0, 1), (4, 0), (4, 1)]
    assert [without_bookkeeping(row) for row in rows[:2]] == [without_bookkeeping(make_row("a"))] * 2


def test_each_attempt_has_an_id_of_its_own() -> None:
    row = make_row("a", 3, _ng_rollout_index=2)
    first, second = attempt_of(row, 0, "run"), attempt_of(row, 1, "run")
    assert (first["_ng_rollout_id"], first["_ng_attempt_index"]) == ("run-t3-r2", 0)
    assert (second["_ng_rollout_id"], second["_ng_attempt_index"]) == ("run-t3-r2-a1", 1)
    assert "_ng_rollout_id" not in row


def test_an_agent_is_found_only_in_a_right_reference() -> None:
    assert find_agent_name(make_row("a")) == "agent"
    assert find_agent_name({"agent_ref": {"name": "x"}}) == "x"
    assert find_agent_name({"agent_ref": {"type": "resources_servers", "name": "x"}}) is None
    assert find_agent_name({"agent_ref": "x"}) is None
    assert find_agent_name({}) is None
