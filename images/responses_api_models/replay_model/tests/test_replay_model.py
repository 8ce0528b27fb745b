from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from images.responses_api_models.openai_model.app import OpenAIModel
from images.responses_api_models.replay_model.app import ReplayModel
from nemo_gym.errors import ConfigError
from nemo_gym.servers.testing import Running, bootstrap_for, serving, serving_app

KEY = "sk-do-not-show-" + "5e" * 16
REQUEST = {"input": "q", "temperature": 0}


def endpoint() -> web.Application:
    """Says how often it was asked, and repeats the key that it was asked with."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        text = f"answer {len(asked)} to {request.headers['Authorization']}"
        if request.path.endswith("/responses"):
            return web.json_response({"output": [{"type": "message", "content": text}]})
        return web.json_response({"choices": [{"message": {"content": text}}]})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_post("/v1/{tail:.+}", answer)
    app.router.add_get("/v1/models", models)
    return app


@asynccontextmanager
async def recording() -> AsyncIterator[Running[ReplayModel]]:
    async with serving_app(endpoint()) as url:
        settings = {"mode": "record", "openai_base_url": f"{url}/v1", "openai_api_key": KEY, "openai_model": "m"}
        async with serving(ReplayModel, settings) as model:
            yield model


async def test_what_was_recorded_is_replayed_word_for_word() -> None:
    chat = {"messages": [{"role": "user", "content": "q"}]}
    async with recording() as model:
        assert (await model.get("/ready")).status == 200
        originals = [await model.post(f"/ng-rollout/x-r{n}/v1/responses", REQUEST) for n in range(3)]
        completion = await model.post("/v1/chat/completions", {**chat, "model": "any"})
        kept = await model.get("/recordings")
    assert [reply.status for reply in originals] == [200] * 3
    records = [orjson.loads(line) for line in kept.body.splitlines()]
    assert [record["rollout_id"] for record in records] == ["x-r0", "x-r1", "x-r2", None]
    assert records[0]["request"] == REQUEST
    assert KEY.encode() not in kept.body
    async with serving(ReplayModel, {}) as model:
        assert (await model.post("/recordings", kept.body)).json() == {"added": 4, "recordings": 4}
        again = [await model.post(f"/ng-rollout/y-r{n}/v1/responses", REQUEST) for n in (2, 0, 1)]
        chat_again = await model.post("/v1/chat/completions", chat)
    assert [reply.body for reply in again] == [originals[n].body for n in (2, 0, 1)]
    assert chat_again.body == completion.body


async def test_recordings_come_with_the_configuration() -> None:
    line = orjson.dumps({"request": REQUEST, "response": {"output": []}}).decode()
    told = replace(bootstrap_for(ReplayModel, {}), files={"recordings": f"{line}\n\n{line}\n"})
    server = ReplayModel(told)
    async with (
        serving_app(server.build_app()) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/responses", json=REQUEST) as reply,
    ):
        assert (reply.status, await reply.json()) == (200, {"output": []})
    with pytest.raises(ConfigError, match="recordings of server tested cannot be used: line 1 is no JSON"):
        ReplayModel(replace(told, files={"recordings": "{"}))


async def test_what_was_not_recorded_is_an_error_that_says_what_to_do() -> None:
    async with serving(ReplayModel, {}) as model:
        empty = await model.post("/v1/responses", REQUEST)
        await model.post("/recordings", orjson.dumps({"request": REQUEST, "response": {"output": []}}))
        other = await model.post("/v1/responses", {**REQUEST, "temperature": 1})
    assert (empty.status, other.status) == (400, 400)
    assert "policy_recordings=PATH" in empty.json()["error"]["message"]
    error = other.json()["error"]
    assert error["type"] == "no_recording"
    assert len(error["request_digest"]) == 64
    assert error["request_digest"] in error["message"]
    assert "has another temperature" in error["message"]
    assert "--model-type replay_model/record" in error["message"]


async def test_the_messages_api_is_replayed_too_however_it_was_recorded() -> None:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "q"}]}
    async with recording() as model:
        original = await model.post("/v1/messages", body)
        kept = (await model.get("/recordings")).body
    record = {"kind": "model_call", "path": "/v1/messages", "status": 200, "request": body, "response": original.json()}
    assert original.json()["content"][0]["text"].startswith("answer 1")
    for recordings in (kept, orjson.dumps(record)):
        async with serving(ReplayModel, {}) as model:
            await model.post("/recordings", recordings)
            again = await model.post("/v1/messages", {**body, "model": "other"})
            another = await model.post("/v1/messages", {**body, "max_tokens": 6})
        assert again.json()["content"] == original.json()["content"]
        assert (another.status, another.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "max_output_tokens" in another.json()["error"]["message"]


async def test_records_of_a_run_whose_key_is_a_word_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said = "Which is it? D: none of them, a bearer of basic multiplication/division"
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"output": [message]})

    app = web.Application()
    app.router.add_post("/responses", answer)
    async with serving_app(app) as url:
        own = {"openai_base_url": url, "openai_model": "m", "openai_api_key": "none"}
        async with serving(OpenAIModel, own, config={"observability_enabled": True}) as model:
            await model.post("/ng-rollout/a-t0-r0/v1/responses", {"input": said})
            records = (await model.get("/ng-rollout/a-t0-r0/records")).json()["records"]
    async with serving(ReplayModel, {}) as model:
        await model.post("/recordings", b"\n".join(map(orjson.dumps, records)))
        reply = await model.post("/ng-rollout/b-t0-r0/v1/responses", {"input": said})
    assert reply.json()["output"][0]["content"][0]["text"] == said


async def test_failures_of_the_endpoint_are_not_recorded() -> None:
    async def fail(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "too long"}}, status=400)

    app = web.Application()
    app.router.add_post("/v1/responses", fail)
    async with serving_app(app) as url:
        settings = {"mode": "record", "openai_base_url": f"{url}/v1", "openai_model": "m"}
        async with serving(ReplayModel, settings) as model:
            reply = await model.post("/v1/responses", REQUEST)
            assert (reply.status, (await model.get("/recordings")).body) == (400, b"")


async def test_lines_that_are_none_are_a_422_and_nothing_is_taken() -> None:
    async with serving(ReplayModel, {}) as model:
        reply = await model.post("/recordings", b'{"request": {}, "response": {}}\n{"request": 1}')
        asked = await model.post("/v1/responses", REQUEST)
        given = await model.get("/recordings")
    assert reply.status == 422
    assert "line 2: it has no request" in reply.json()["error"]["message"]
    assert "none to any other" in asked.json()["error"]["message"]
    assert (given.status, given.json()["error"]["type"]) == (409, "nothing_recorded")


async def test_many_at_once_get_their_own() -> None:
    def record(n: int, r: int) -> bytes:
        return orjson.dumps(
            {"request": {"input": str(n)}, "response": {"output": [], "n": n, "r": r}, "rollout_id": f"a-t{n}-r{r}"}
        )

    lines = b"\n".join(record(n, r) for n in range(100) for r in range(4))
    async with serving(ReplayModel, {}) as model:
        await model.post("/recordings", lines)

        async def ask(n: int, r: int) -> bool:
            reply: Any = (await model.post(f"/ng-rollout/b-t{n}-r{r}/v1/responses", {"input": str(n)})).json()
            return (reply["n"], reply["r"]) == (n, r)

        assert all(await asyncio.gather(*(ask(n, r) for n in reversed(range(100)) for r in range(4))))


def test_recording_needs_an_endpoint() -> None:
    with pytest.raises(ConfigError, match="mode record needs openai_base_url and openai_model"):
        ReplayModel(bootstrap_for(ReplayModel, {"mode": "record"}))
