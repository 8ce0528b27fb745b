"""The registry gathers a rollout's records from the servers of its session, ours and others'."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nemo_gym.servers import registry as registry_module
from nemo_gym.servers.messages import Bootstrap, VerifyRequest
from nemo_gym.servers.registry import Registry
from nemo_gym.servers.resources import ResourcesServer
from nemo_gym.servers.testing import Answer, Running, serving, serving_app

OBSERVED = {"observability_enabled": True}
NO_OTHERS: Mapping[str, str] = MappingProxyType({})
VERIFIED = {"responses_create_params": {"input": "q"}, "response": {"output": []}}
TOKEN = "t0ken-0123456789"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Half(ResourcesServer):
    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        return {"reward": 0.5}


class Session:
    """Two servers of ours, and a registry that knows them and ``others`` by their names."""

    def __init__(self, one: Running[Half], two: Running[Half], registry: Registry, get: Any) -> None:
        self.one, self.two, self.registry, self._get = one, two, registry, get

    async def get(self, path: str, token: str | None = TOKEN) -> Answer:
        answer: Answer = await self._get(path, token)
        return answer

    async def verify(self, rollout_id: str, *servers: Running[Half]) -> None:
        for server in servers or (self.one, self.two):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            assert (await server.post(f"/ng-rollout/{rollout_id}/verify", VERIFIED, headers)).status == 200


@asynccontextmanager
async def session(
    others: Mapping[str, str] = NO_OTHERS, *, config: Mapping[str, Any] = OBSERVED
) -> AsyncIterator[Session]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        one, two = [await enter(serving(Half, name=name, config=config, token=TOKEN)) for name in ("one", "two")]
        inside = {"one": one.url, "two": two.url, **others}
        bootstrap = Bootstrap("s", "registry", {}, "secret", token=TOKEN, awaited=tuple(inside), inside=inside)
        registry = Registry(bootstrap)
        url = await enter(serving_app(registry.build_app()))
        client = await enter(aiohttp.ClientSession())

        async def get(path: str, token: str | None) -> Answer:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            async with client.get(url + path, headers=headers) as response:
                return Answer(response.status, await response.read(), {})

        yield Session(one, two, registry, get)


def foreign(status: int, body: Any = None) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(body), status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return app


async def test_records_of_all_servers_come_as_one_list_in_the_order_of_the_times() -> None:
    async with session() as servers:
        for server in (servers.two, servers.one, servers.two):
            await servers.verify("r1", server)
        await servers.verify("r2", servers.one)
        answer = (await servers.get("/ng-rollout/r1/records")).json()
    assert (answer["rollout_id"], answer["unasked"]) == ("r1", {})
    assert [record["server"] for record in answer["records"]] == ["two", "one", "two"]
    assert {record["reward"] for record in answer["records"]} == {0.5}


async def test_the_token_is_asked_for_and_sent_on() -> None:
    async with session() as servers:
        await servers.verify("r1")
        for path in ("/ng-rollout/r1/records", "/ng-rollout"):
            assert (await servers.get(path, token=None)).status == 401
            assert (await servers.get(path, token="wrong")).status == 401
        answer = await servers.get("/ng-rollout/r1/records")
    assert (answer.status, TOKEN.encode() in answer.body) == (200, False)


async def test_servers_that_cannot_be_asked_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "RECORDS_TIMEOUT_S", 0.2)

    async def sleeps(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    slow = web.Application()
    slow.router.add_get("/{path:.*}", sleeps)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        urls = {
            "theirs": await enter(serving_app(web.Application())),
            "odd": await enter(serving_app(foreign(200, ["no", "records"]))),
            "broken": await enter(serving_app(foreign(500, {"error": "internal"}))),
            "slow": await enter(serving_app(slow)),
            "gone": "http://127.0.0.1:1",
            "dead": "http://127.0.0.1:2",
        }
        servers = await enter(session(urls))
        servers.registry.on_input(b'{"type": "server_died", "name": "dead", "exit_code": 1}')
        await servers.verify("r1", servers.one)
        answer = (await servers.get("/ng-rollout/r1/records")).json()
        listed = (await servers.get("/ng-rollout")).json()
    assert [record["server"] for record in answer["records"]] == ["one"]
    assert [rollout["rollout_id"] for rollout in listed["rollouts"]] == ["r1"]
    for unasked in (answer["unasked"], listed["unasked"]):
        assert "Connect" in unasked.pop("gone")
        assert unasked == {
            "theirs": "it keeps no records (HTTP 404)",
            "odd": "it keeps no records (HTTP 200)",
            "broken": "it keeps no records (HTTP 500)",
            "slow": "it did not answer within 0.2 s",
            "dead": "it has died",
        }


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("run", "did you mean run-r1, run-r0?"),  # repeats carry a suffix
        ("run-r0-a1", "did you mean run-r0?"),
        ("rum-r9", "did you mean run-r1, run-r0?"),
        ("something-else", "2 others are known"),
    ],
)
async def test_an_unknown_rollout_is_a_404_with_those_that_may_be_meant(asked: str, hint: str) -> None:
    async with session() as servers:
        await servers.verify("run-r0")
        await servers.verify("run-r1", servers.one)
        answer = await servers.get(f"/ng-rollout/{asked}/records")
    assert answer.status == 404
    error = answer.json()["error"]
    assert (error["type"], error["message"]) == ("no_records", f"nothing is known of rollout {asked}; {hint}")


async def test_rollouts_are_listed_the_latest_first(tmp_path: Path) -> None:
    async with session() as servers:
        assert (await servers.get("/ng-rollout")).json()["error"]["message"] == "no rollout has been recorded yet"
        last = {("one", "b"): 1, ("one", "a"): 2, ("two", "c"): 3, ("two", "a"): 4}
        for (name, rollout_id), second in last.items():
            await servers.verify(rollout_id, servers.one if name == "one" else servers.two)
            os.utime(tmp_path / "nemo-gym-records" / "session" / name / rollout_id, (second, second))
        listed = (await servers.get("/ng-rollout")).json()
    assert [rollout["rollout_id"] for rollout in listed["rollouts"]] == ["a", "c", "b"]
    assert [rollout["time"][17:19] for rollout in listed["rollouts"]] == ["04", "03", "01"]


async def test_off_it_says_so() -> None:
    async with session(config={}) as servers:
        await servers.verify("r1")
        for path in ("/ng-rollout/r1/records", "/ng-rollout"):
            answer = await servers.get(path)
            assert (answer.status, answer.json()["error"]["type"]) == (404, "observability_off")
            assert "observability_enabled=true" in answer.json()["error"]["message"]


async def test_without_an_address_of_its_own_a_server_is_reached_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap = Bootstrap(
        "s", "registry", {}, "secret", awaited=("mcqa", "hidden"), inside={"hidden": "http://hidden:8"}
    )
    registry = Registry(bootstrap)
    asked: list[str] = []

    async def get(server: str, url: str, path: str) -> Any:
        asked.append(url + path)
        raise TimeoutError

    monkeypatch.setattr(registry.client, "get", get)
    async with (
        serving_app(registry.build_app()) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}/ng-rollout") as response,
    ):
        assert response.status == 502
        said = (await response.json())["error"]["message"]
    assert said == (
        "no server has given records: mcqa: it did not answer within 5 s; hidden: it did not answer within 5 s"
    )
    assert asked == ["http://mcqa:8000/ng-rollout", "http://hidden:8/ng-rollout"]
