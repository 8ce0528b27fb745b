"""The counter by itself: its tools, its sessions, and what its verifier makes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from images.resources_servers.counter.app import Counter
from nemo_gym.servers.testing import Running, serving


def row(start: int = 5, expected: int = 5, **more: Any) -> dict[str, Any]:
    params = {"input": "count"}
    return {"responses_create_params": params, "start_value": start, "expected_value": expected, **more}


def done(start: int, expected: int) -> dict[str, Any]:
    return row(start, expected, response={"output": []})


async def test_the_tools_change_what_the_session_counts() -> None:
    async with serving(Counter) as counter:
        await counter.post("/seed_session", row(start=5))
        answers = [
            await counter.post("/read", {}),
            await counter.post("/increment", {"by": 4}),
            await counter.post("/decrement", {"by": 11}),
            await counter.post("/reset", {}),
            await counter.post("/increment", {"by": 1000}),
        ]
        verified = (await counter.post("/verify", done(5, 1000))).json()
        missed = (await counter.post("/verify", done(5, 7))).json()
        mode = (await counter.get("/reverify_mode")).json()
    assert [answer.json() for answer in answers] == [{"value": value} for value in (5, 9, -2, 0, 1000)]
    assert (verified["reward"], verified["differences"]) == (1.0, [])
    assert (missed["reward"], missed["differences"]) == (0.0, ["the counter shows 1000; expected 7"])
    assert mode == "unsupported"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"by": 0}, "by"), ({"by": 1001}, "by"), ({"by": "many"}, "by"), ({}, "by"), ({"by": 1, "to": 2}, "to")],
)
async def test_arguments_that_make_no_sense_change_nothing_and_say_why(arguments: dict[str, Any], field: str) -> None:
    async with serving(Counter) as counter:
        await counter.post("/seed_session", row(start=5))
        refused = await counter.post("/increment", arguments)
        shown = (await counter.post("/read", {})).json()
    assert refused.status == 422
    assert refused.json()["detail"][0]["loc"] == ["body", field]
    assert shown == {"value": 5}


async def test_a_row_must_say_where_the_counter_starts_and_what_is_expected() -> None:
    async with serving(Counter) as counter:
        unseeded = await counter.post("/read", {})
        refused = await counter.post("/seed_session", {"responses_create_params": {"input": "x"}})
        await counter.post("/seed_session", row())
        unjudged = await counter.post(
            "/verify", {"responses_create_params": {"input": "x"}, "response": {"output": []}}
        )
    assert (unseeded.status, unseeded.json()["error"]["type"]) == (409, "no_session")
    assert (refused.status, refused.json()["detail"][0]["loc"]) == (422, ["body", "start_value"])
    assert (unjudged.status, unjudged.json()["detail"][0]["loc"]) == (422, ["body", "expected_value"])


async def test_two_hundred_sessions_do_not_mix() -> None:
    async with serving(Counter) as counter, aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as callers:
        client = Running(counter.server, counter.url, callers)

        async def rollout(number: int) -> float:
            seeded = await client.post("/seed_session", row(start=number))
            cookie = {"Cookie": seeded.headers["Set-Cookie"].partition(";")[0]}
            for _ in range(number % 5):
                await client.post("/increment", {"by": number + 1}, cookie)
            expected = number + number % 5 * (number + 1)
            return float((await client.post("/verify", done(number, expected), cookie)).json()["reward"])

        rewards = await asyncio.gather(*(rollout(number) for number in range(200)))
    assert rewards == [1.0] * 200
