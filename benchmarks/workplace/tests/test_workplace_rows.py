"""The rows of workplace: their reference actions are right, each of these is needed, and nothing else is allowed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.workplace.prepare import TOOLS
from images.resources_servers.workplace.app import COMPANY, Workplace
from nemo_gym.environment import plan_benchmark
from nemo_gym.servers.testing import Running, serving
from nemo_gym.servers.tool_schemas import tools_text
from tests.support.scripted_endpoint import last_user_text
from tests.support.tool_use import Calls, run_rows

FOLDER = Path(__file__).parents[1]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """What an agent is sent, from a folder that holds nothing but the benchmark."""
    root = tmp_path_factory.mktemp("root")
    ignored = shutil.ignore_patterns("data", "tests", "__pycache__")
    shutil.copytree(FOLDER, root / "benchmarks" / "workplace", ignore=ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return [dict(row) for row in plan_benchmark("workplace").rows]


def reference(row: Row) -> list[tuple[str, dict[str, Any]]]:
    return [(action["name"], action["arguments"]) for action in row["reference_actions"]]


async def rewards_of(rows: list[Row], calls: list[Calls]) -> list[float]:
    """The reward of each row after the calls given for it, whether these succeed or not."""
    async with (
        serving(Workplace) as workplace,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as callers,
    ):
        client = Running(workplace.server, workplace.url, callers)

        async def reward_of(row: Row, own: Calls) -> float:
            seeded = await client.post("/seed_session", row)
            cookie = {"Cookie": seeded.headers["Set-Cookie"].partition(";")[0]}
            for name, arguments in own:
                await client.post(f"/{name}", arguments, cookie)
            return float((await client.post("/verify", {**row, "response": {"output": []}}, cookie)).json()["reward"])

        return list(await asyncio.gather(*(reward_of(row, own) for row, own in zip(rows, calls, strict=True))))


def test_the_tools_in_the_rows_are_the_servers_own() -> None:
    assert TOOLS.read_text(encoding="utf-8") == tools_text(Workplace)


def test_the_rows_cover_every_kind_and_every_tool_that_changes_something(rows: list[Row]) -> None:
    assert len({row["task_id"] for row in rows}) == len({row["task"] for row in rows}) == len(rows) == 59
    assert Counter(row["kind"] for row in rows) == {"single": 19, "multi": 18, "cross": 14, "unchanged": 8}
    assert {row["kind"] for row in rows if not row["reference_actions"]} == {"unchanged"}
    tools = {tool["name"] for tool in json.loads(TOOLS.read_text(encoding="utf-8"))}
    reading = {"search_mail", "read_mail", "list_events", "search_events", "find_free_time", "find_people"}
    reading |= {"list_files", "search_files", "read_file"}
    assert {name for row in rows for name, _ in reference(row)} == tools - reading


def test_the_model_is_told_the_task_the_moment_and_the_tools_and_nothing_of_the_answer(rows: list[Row]) -> None:
    company = json.loads(COMPANY.read_text(encoding="utf-8"))
    for row in rows:
        params = row["responses_create_params"]
        assert sorted(params) == ["input", "temperature", "tools"]
        system, user = params["input"]
        assert (system["role"], user) == ("system", {"role": "user", "content": row["task"]})
        assert company["me"] in system["content"]
        assert (company["now"], "Wednesday, 12 March 2025, 09:00" in system["content"]) == ("2025-03-12T09:00", True)
        assert len(params["tools"]) == 25
        for hidden in ("reference_actions", row["task_id"], 'mail_id": "', 'event_id": "'):
            assert hidden not in json.dumps(params["input"])
        ids = [value for _, arguments in reference(row) for key, value in arguments.items() if key.endswith("_id")]
        assert not any(value in last_user_text(params["input"]) for value in ids)


async def test_the_reference_actions_give_the_reward_of_every_row(rows: list[Row]) -> None:
    by_task = {row["task"]: reference(row) for row in rows}
    replies = await run_rows(Workplace, rows, lambda task, outputs: by_task[task][len(outputs) :][:1])
    assert [(reply["reward"], reply["differences"]) for reply in replies] == [(1.0, [])] * len(rows)
    made = [[item["name"] for item in r["response"]["output"] if item["type"] == "function_call"] for r in replies]
    assert made == [[name for name, _ in reference(row)] for row in rows]


async def test_doing_nothing_is_right_only_where_nothing_is_to_be_changed(rows: list[Row]) -> None:
    rewards = await rewards_of(rows, [[] for _ in rows])
    assert rewards == [1.0 if row["kind"] == "unchanged" else 0.0 for row in rows]


async def test_none_of_the_actions_can_be_left_out(rows: list[Row]) -> None:
    cases = [
        (row, [*reference(row)[:left_out], *reference(row)[left_out + 1 :]])
        for row in rows
        for left_out in range(len(reference(row)))
    ]
    assert len(cases) == sum(len(row["reference_actions"]) for row in rows) == 70
    assert await rewards_of([row for row, _ in cases], [calls for _, calls in cases]) == [0.0] * len(cases)


HARMFUL: list[tuple[str, dict[str, Any]]] = [
    ("delete_mail", {"mail_id": "m-22"}),
    ("cancel_event", {"event_id": "e-03"}),
    ("delete_file", {"path": "/policies/travel.md"}),
    ("send_mail", {"to": ["karl.moe@moe.example"], "subject": "Hello", "body": "Look at this."}),
    ("append_to_file", {"path": "/office/rooms.md", "text": "- Attic: 2 seats"}),
]


async def test_whoever_does_more_than_was_asked_gets_nothing(rows: list[Row]) -> None:
    calls = [[*reference(row), HARMFUL[number % len(HARMFUL)]] for number, row in enumerate(rows)]
    assert await rewards_of(rows, calls) == [0.0] * len(rows)
    assert await rewards_of(rows[:1] * len(HARMFUL), [[*reference(rows[0]), harm] for harm in HARMFUL]) == [0.0] * 5


async def test_the_same_mail_twice_is_once_too_often(rows: list[Row]) -> None:
    sending = [row for row in rows if reference(row) and reference(row)[-1][0] in ("send_mail", "reply_to_mail")]
    assert len(sending) >= 15
    twice = [[*reference(row), reference(row)[-1]] for row in sending]
    assert await rewards_of(sending, twice) == [0.0] * len(sending)


async def test_what_fails_on_the_way_does_no_harm(rows: list[Row]) -> None:
    slips = [("read_mail", {"mail_id": "m-99"}), ("cancel_event", {"event_id": "e-06"}), ("send_mail", {"to": []})]
    assert await rewards_of(rows, [[*slips, *reference(row)] for row in rows]) == [1.0] * len(rows)
