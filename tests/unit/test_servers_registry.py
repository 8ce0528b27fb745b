from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from nemo_gym.servers.messages import Bootstrap
from nemo_gym.servers.registry import Registry
from nemo_gym.servers.testing import Answer, serving_app

INSTANCE = {
    "name": "mcqa", "process_name": "mcqa", "server_type": "resources_servers", "host": "127.0.0.1", "port": 4000,
    "url": "http://127.0.0.1:4000", "status": "running", "start_time": 1.5,
}  # fmt: skip
DEAD_URL = "http://127.0.0.1:1"
YAML = "mcqa: {host: 127.0.0.1}\nümlaut: ja\n"
HOST_VIEW = {"type": "host_view", "config_yaml": YAML, "server_instances": [INSTANCE]}
DEATH = {"type": "server_died", "name": "mcqa", "exit_code": 137, "oom_killed": True, "detail": "out of memory"}


def make_registry() -> Registry:
    return Registry(Bootstrap("session", "registry", {}, "secret", awaited=("model", "mcqa")))


def feed(registry: Registry, *messages: dict[str, Any]) -> None:
    for message in messages:
        registry.on_input(json.dumps(message).encode())


async def answers(registry: Registry) -> dict[str, Answer]:
    found = {}
    async with serving_app(registry.build_app()) as url, aiohttp.ClientSession() as session:
        for path in ("/", "/ready", "/global_config_dict_yaml", "/server_instances"):
            async with session.get(url + path) as response:
                found[path] = Answer(response.status, await response.read(), {})
    return found


async def test_until_the_host_view_arrives_it_lives_and_names_whom_it_awaits() -> None:
    found = await answers(make_registry())
    assert found["/"].json() == {"status": "ok", "server": "registry", "session_id": "session"}
    ready, config = found["/ready"], found["/global_config_dict_yaml"]
    assert (ready.status, ready.json()) == (503, {"status": "waiting", "awaited": ["model", "mcqa"]})
    assert config.status == 503
    assert "model, mcqa" in config.json()["error"]["message"]
    assert found["/server_instances"].json() == []


async def test_then_it_serves_it_as_a_json_string_of_yaml() -> None:
    registry = make_registry()
    feed(registry, HOST_VIEW)
    found = await answers(registry)
    assert found["/ready"].status == 200
    assert found["/global_config_dict_yaml"].json() == HOST_VIEW["config_yaml"]
    assert found["/server_instances"].json() == [INSTANCE]


@pytest.mark.parametrize("messages", [(HOST_VIEW, DEATH), (DEATH, HOST_VIEW), (DEATH, HOST_VIEW, HOST_VIEW)])
async def test_a_death_shows_whenever_it_is_told(messages: tuple[dict[str, Any], ...]) -> None:
    registry = make_registry()
    feed(registry, *messages)
    (instance,) = (await answers(registry))["/server_instances"].json()
    dead = {"status": "dead", "exit_code": 137, "oom_killed": True, "detail": "out of memory"}
    assert instance == {**INSTANCE, **dead}


def inside_app(answers: dict[str, tuple[int, bytes]], asked: list[tuple[str, str | None]]) -> web.Application:
    """A server that only the registry reaches."""

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers.get("Authorization")))
        status, body = answers[request.path]
        return web.Response(status=status, body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def test_it_asks_a_server_that_only_it_reaches_and_passes_the_answer_on_as_it_came() -> None:
    asked: list[tuple[str, str | None]] = []
    says = {"/": (200, b'{"server": "sandbox"}'), "/ready": (503, b'{"status": "waiting", "key": "k"}')}
    async with serving_app(inside_app(says, asked)) as inside:
        bootstrap = Bootstrap("s", "registry", {}, "x", token="t0ken", inside={"sandbox": inside, "gone": DEAD_URL})
        async with serving_app(Registry(bootstrap).build_app()) as url, aiohttp.ClientSession() as session:

            async def get(path: str, token: str = "t0ken") -> tuple[int, bytes]:
                async with session.get(url + path, headers={"Authorization": f"Bearer {token}"}) as response:
                    return response.status, await response.read()

            assert await get("/inside/sandbox/") == says["/"]
            assert await get("/inside/sandbox/ready") == says["/ready"]
            assert asked == [("/", "Bearer t0ken"), ("/ready", "Bearer t0ken")]
            assert (await get("/inside/sandbox/", token="wrong"))[0] == 401
            # no way to anybody else, nor to the server's other routes
            for path in ("/inside/mcqa/", "/inside/sandbox/tool", "/inside/sandbox", "/inside/"):
                assert (await get(path))[0] == 404
            status, body = await get("/inside/gone/ready")
            assert status == 502  # the one who waits goes on asking
            assert b"gone" in body
            assert len(asked) == 2


async def test_a_server_that_only_it_reaches_verifies_through_it() -> None:
    asked: list[tuple[str, str | None]] = []
    says = {"/verify": (200, b'{"reward":1.0}'), "/reverify_mode": (200, b'"stateless"')}
    async with serving_app(inside_app(says, asked)) as inside:
        registry = Registry(Bootstrap("s", "registry", {}, "x", token="t0ken", inside={"sandbox": inside}))
        async with serving_app(registry.build_app()) as url, aiohttp.ClientSession() as session:
            headers = {"Authorization": "Bearer t0ken"}
            async with session.post(url + "/inside/sandbox/verify", json={}, headers=headers) as response:
                assert (response.status, await response.read()) == says["/verify"]
            async with session.get(url + "/inside/sandbox/reverify_mode", headers=headers) as response:
                assert await response.json() == "stateless"
            async with session.post(url + "/inside/sandbox/verify", json={}) as response:
                assert response.status == 401
            async with session.post(url + "/inside/sandbox/seed_session", json={}, headers=headers) as response:
                assert response.status == 404
    assert [path for path, _ in asked] == ["/verify", "/reverify_mode"]


@pytest.mark.parametrize("line", [b"junk", b"[]", b"{}", b'{"type": "host_view"}', b'{"type": "server_died"}', b""])
async def test_a_line_that_cannot_be_used_changes_nothing(line: bytes) -> None:
    registry = make_registry()
    feed(registry, HOST_VIEW)
    registry.on_input(line)
    found = await answers(registry)
    assert found["/ready"].status == 200
    assert found["/server_instances"].json() == [INSTANCE]


async def test_servers_on_the_sessions_network_get_its_addresses_before_any_is_ready() -> None:
    """They ask by the registry's name there; whoever asks from outside gets the host view, and waits for it."""
    inside = {"inside_view": "mcqa: {host: mcqa, port: 8000}\n"}
    registry = Registry(Bootstrap("session", "registry", inside, "secret", awaited=("mcqa",)))
    async with serving_app(registry.build_app()) as url, aiohttp.ClientSession() as session:

        async def ask(host: str) -> tuple[int, Any]:
            async with session.get(f"{url}/global_config_dict_yaml", headers={"Host": host}) as response:
                return response.status, await response.json()

        assert await ask("registry:8000") == (200, inside["inside_view"])
        assert (await ask("127.0.0.1:11000"))[0] == 503
        feed(registry, HOST_VIEW)
        assert await ask("registry:8000") == (200, inside["inside_view"])
        assert await ask("127.0.0.1:11000") == (200, YAML)
