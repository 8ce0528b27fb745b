"""The rows of counter: right by themselves, and scored right when a model does all, a part, or more than was asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.counter.prepare import KINDS, TOOLS, rows
from images.resources_servers.counter.app import Counter
from nemo_gym.environment import plan_benchmark
from nemo_gym.servers.tool_schemas import tools_text
from tests.support.scripted_endpoint import last_user_text
from tests.support.tool_use import Calls, run_rows

FOLDER = Path(__file__).parents[1]
ROWS = rows([])


@pytest.fixture(scope="module")
def planned_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What an agent is sent, from a folder that holds nothing but the benchmark."""
    root = tmp_path_factory.mktemp("root")
    ignored = shutil.ignore_patterns("data", "tests", "__pycache__")
    shutil.copytree(FOLDER, root / "benchmarks" / "counter", ignore=ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return [dict(row) for row in plan_benchmark("counter").rows]


def test_the_tools_in_the_rows_are_the_servers_own() -> None:
    assert TOOLS.read_text(encoding="utf-8") == tools_text(Counter)


def test_rows_are_many_kinds_and_the_same_each_time() -> None:
    assert rows([]) == ROWS
    assert len({row["task_id"] for row in ROWS}) == len(ROWS) == 44
    unchanged = {row["kind"] for row in ROWS if row["start_value"] == row["expected_value"]}
    assert unchanged == {"tell"}
    pinned = {row["task_id"]: (row["start_value"], row["task"], row["expected_value"]) for row in ROWS}
    assert pinned["steps-1"] == (18, "Add 13 to the counter, then take away 7, and then add 23.", 47)
    assert pinned["double-1"] == (42, "Look at the counter, and double what it shows.", 84)
    parity = "If the counter shows an even number, add {}. If it shows an odd number, take away {}."
    assert pinned["parity-1"] == (53, parity.format(8, 11), 42)
    assert pinned["parity-4"] == (10, parity.format(6, 14), 16)
    above = "If the counter shows more than {}, set it back to zero; otherwise add {}."
    assert pinned["threshold-1"] == (42, above.format(36, 8), 0)
    assert pinned["threshold-2"] == (13, above.format(25, 9), 22)


@pytest.mark.parametrize(
    ("kind", "task", "expected"),
    [
        ("add", "Add {low} to the counter.", lambda start, n: start + n["low"]),
        ("double", "Look at the counter, and double what it shows.", lambda start, n: 2 * start),
        ("tell", "Tell me what the counter shows. Leave it as it is.", lambda start, n: start),
    ],
)
def test_what_is_expected_is_what_the_words_ask_for(kind: str, task: str, expected: Callable[..., int]) -> None:
    asked: list[int] = []

    def low_end(low: int, high: int) -> int:
        asked.append(low)
        return low

    start, words, value = KINDS[kind](low_end)
    assert start == asked[0]
    assert words == task.format(low=asked[-1])
    assert value == expected(start, {"low": asked[-1]})


def test_the_model_is_told_the_task_and_the_tools_and_nothing_of_the_answer(planned_rows: list[dict[str, Any]]) -> None:
    assert [row["task_id"] for row in planned_rows] == [row["task_id"] for row in ROWS]
    for planned, row in zip(planned_rows, ROWS, strict=True):
        params = planned["responses_create_params"]
        assert sorted(params) == ["input", "temperature", "tools"]
        assert [message["role"] for message in params["input"]] == ["system", "user"]
        assert last_user_text(params["input"]) == row["task"]
        assert [tool["name"] for tool in params["tools"]] == ["decrement", "increment", "read", "reset"]
        assert "expected_value" not in json.dumps(params)


async def test_who_does_what_was_asked_gets_a_reward_on_every_row(planned_rows: list[dict[str, Any]]) -> None:
    replies = await run_rows(Counter, planned_rows, bring_to(lambda expected: expected))
    assert [reply["reward"] for reply in replies] == [1.0] * len(ROWS)
    assert {reply["task_id"] for reply in replies} == {row["task_id"] for row in ROWS}
    kinds = [item["type"] for item in replies[0]["response"]["output"]]
    assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]


async def test_who_misses_by_one_gets_none(planned_rows: list[dict[str, Any]]) -> None:
    replies = await run_rows(Counter, planned_rows, bring_to(lambda expected: expected + 1))
    assert [reply["reward"] for reply in replies] == [0.0] * len(ROWS)
    expected = ROWS[0]["expected_value"]
    assert replies[0]["differences"] == [f"the counter shows {expected + 1}; expected {expected}"]


async def test_who_does_nothing_is_right_where_nothing_was_to_be_changed(planned_rows: list[dict[str, Any]]) -> None:
    replies = await run_rows(Counter, planned_rows, lambda task, outputs: [])
    assert {reply["kind"] for reply in replies if reply["reward"] == 1.0} == {"tell"}


def bring_to(wanted: Callable[[int], int]) -> Callable[[str, list[Any]], Calls]:
    """Look first, then go to what ``wanted`` makes of the right value. Several rows may ask in the same words: what the
    counter shows tells them apart."""
    expected_by = {(row["task"], row["start_value"]): row["expected_value"] for row in ROWS}

    def policy(task: str, outputs: list[Any]) -> Calls:
        if not outputs:
            return [("read", {})]
        if len(outputs) > 1:
            return []
        value = outputs[0]["value"]
        way = wanted(expected_by[task, value]) - value
        return [("increment" if way > 0 else "decrement", {"by": abs(way)})] if way else []

    return policy
