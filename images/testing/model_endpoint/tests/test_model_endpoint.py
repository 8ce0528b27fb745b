"""The endpoint over HTTP: its key, both APIs, delays, errors, what it keeps; and one that starts without a key."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from images.testing.model_endpoint import app
from nemo_gym.servers.scripted import Reply, Rule, Script
from nemo_gym.servers.testing import serving_app

KEY = "a-key"


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.url + path, json=body, **options) as reply:
            return reply.status, await reply.json()


@asynccontextmanager
async def endpoint(script: Script | None = None, key: str = KEY) -> AsyncIterator[Client]:
    async with (
        serving_app(app.build_app(KEY)) as url,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
    ):
        client = Client(session, url)
        if script is not None:
            assert await client.ask("PUT", "/script", script.model_dump()) == (200, {"rules": len(script.rules)})
        yield client


async def test_it_answers_on_both_endpoints_and_keeps_what_it_was_asked() -> None:
    async with endpoint(Script(rules=(Rule(contains="2", reply=Reply(text="two")),))) as client:
        status, response = await client.ask("POST", "/v1/responses", {"model": "m", "input": "2?"})
        assert (status, response["output"][0]["content"][0]["text"], response["model"]) == (200, "two", "m")
        messages = [{"role": "user", "content": "3?"}]
        status, completion = await client.ask("POST", "/v1/chat/completions", {"model": "m", "messages": messages})
        assert (status, completion["choices"][0]["message"]["content"]) == (200, "This is a scripted answer.")
        _, asked = await client.ask("GET", "/asked")
        assert [(one["path"], one["text"], one["status"]) for one in asked] == [
            ("/v1/responses", "2?", 200),
            ("/v1/chat/completions", "3?", 200),
        ]
        assert asked[1]["body"]["messages"] == messages
        assert (await client.ask("GET", "/v1/models"))[1]["data"][0]["id"] == "scripted"


async def test_errors_come_once_or_always_with_their_headers() -> None:
    once = Rule(reply=Reply(status=429, error="slow down", headers={"Retry-After": "1"}), times=1)
    always = Rule(contains="bad", reply=Reply(status=400, error="no such thing"))
    async with endpoint(Script(rules=(once, always))) as client:
        async with client.session.post(client.url + "/v1/responses", json={"input": "x"}) as reply:
            assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
            assert (await reply.json())["error"]["message"] == "slow down"
        assert [(await client.ask("POST", "/v1/responses", {"input": text}))[0] for text in ("bad", "bad", "x")] == [
            400,
            400,
            200,
        ]


async def test_an_answer_waits_as_long_as_it_says_and_others_do_not() -> None:
    async with endpoint(Script(rules=(Rule(contains="slow", reply=Reply(text="late", delay_s=1.0)),))) as client:
        began = time.monotonic()
        assert (await client.ask("POST", "/v1/responses", {"input": "fast"}))[0] == 200
        assert time.monotonic() - began < 1.0
        began = time.monotonic()
        assert (await client.ask("POST", "/v1/responses", {"input": "slow"}))[0] == 200
        assert time.monotonic() - began >= 1.0


async def test_whoever_has_no_key_only_learns_that_it_runs() -> None:
    async with endpoint(key="another") as client:
        assert await client.ask("GET", "/health") == (200, {"status": "ok"})
        for method, path in [("POST", "/v1/responses"), ("GET", "/asked"), ("PUT", "/script"), ("GET", "/v1/models")]:
            status, body = await client.ask(method, path, {})
            assert (status, body["error"]["message"]) == (401, "Incorrect API key provided.")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"data": b"{"}, "The body is no JSON"),
        ({"data": b"[1]"}, "The body must be a JSON object; found list."),
        ({"json": {"input": "x", "stream": True}}, "does not stream"),
    ],
)
async def test_what_it_cannot_read_is_a_clear_error(sent: dict[str, Any], said: str) -> None:
    async with endpoint() as client, client.session.post(client.url + "/v1/responses", **sent) as reply:
        assert reply.status == 400
        assert said in (await reply.json())["error"]["message"]


async def test_a_script_that_cannot_be_is_refused_and_the_old_one_stays() -> None:
    async with endpoint(Script.answering("B")) as client:
        status, body = await client.ask("PUT", "/script", {"rules": [{"regex": "("}]})
        assert status == 422
        assert "rules.0.reply" in body["error"]["message"]
        _, response = await client.ask("POST", "/v1/responses", {"input": "x"})
        assert response["output"][0]["content"][0]["text"] == "B"


def test_without_a_key_it_does_not_start() -> None:
    done = subprocess.run([sys.executable, Path(app.__file__)], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"needed: the endpoint's key in {app.KEY_VARIABLE}; found: nothing\n"
