"""A registry and an agent in this process, on real sockets, that do what a script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import yaml
from aiohttp import web

Script = Callable[["FakeGym", dict[str, Any], web.Request], Awaitable[web.StreamResponse]]


async def reward_of_row(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
    """The ordinary answer: the row with a response and the reward that the row itself asks for."""
    return web.json_response({**row, "response": {"output": []}, "reward": row.get("wanted_reward", 1.0)})


@dataclass
class FakeGym:
    """Serves until the ``async with`` ends. What it was asked is in ``rows``, ``paths`` and ``polls``."""

    script: Script = reward_of_row
    agent_name: str = "agent"
    correlates: bool = True
    has_ready: bool = True
    has_instances: bool = True
    token: str | None = None
    awaited: list[str] = field(default_factory=list)
    dead: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] | None = None
    aggregate: Any = None
    records_of: Callable[[str], tuple[int, Any]] = lambda rollout_id: (404, {})  # "" asks for the list of rollouts
    rows: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    polls: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    host: str = "127.0.0.1"
    port: int = 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/global_config_dict_yaml", self._config)
        app.router.add_get("/server_instances", self._instances)
        app.router.add_get("/ng-rollout", self._records)
        app.router.add_get("/ng-rollout/{rollout_id}/records", self._records)
        app.router.add_post("/run", self._run)
        app.router.add_post("/aggregate_metrics", self._aggregate)
        if self.correlates:
            app.router.add_post("/ng-rollout/{rollout_id}/run", self._run)
        self._changed = asyncio.Condition()
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self.host, self.port, backlog=4096)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def host_view(self) -> dict[str, Any]:
        """The config with an agent, its resources server and a model."""
        return {
            self.agent_name: {
                "responses_api_agents": {
                    "simple_agent": {
                        "host": self.host,
                        "port": self.port,
                        "resources_server": {"type": "resources_servers", "name": "verifier"},
                        "model_server": {"type": "responses_api_models", "name": "policy_model"},
                    }
                }
            },
            "verifier": {"resources_servers": {"mcqa": {"host": self.host, "port": 1}}},
            "policy_model": {"responses_api_models": {"openai_model": {"host": self.host, "port": 2}}},
            "policy_api_key": "****",
        }

    def _allowed(self, request: web.Request) -> bool:
        return self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}"

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        if not self.has_ready:
            return web.Response(status=404)
        if not self._allowed(request):
            return web.json_response({"error": "token"}, status=401)
        if self.awaited:
            return web.json_response({"status": "waiting", "awaited": self.awaited}, status=503)
        return web.json_response({"status": "ready"})

    async def _config(self, request: web.Request) -> web.StreamResponse:
        if self.awaited:
            return web.json_response({"error": "waiting"}, status=503)
        return web.json_response(yaml.safe_dump(self.config or self.host_view()))

    async def _instances(self, request: web.Request) -> web.StreamResponse:
        self.polls += 1
        if not self.has_instances:
            return web.Response(status=404)
        alive = [{"name": self.agent_name, "status": "running"}]
        return web.json_response(alive + [{"status": "dead", **server} for server in self.dead])

    async def _records(self, request: web.Request) -> web.StreamResponse:
        if not self._allowed(request):
            return web.json_response({"error": "token"}, status=401)
        status, body = self.records_of(request.match_info.get("rollout_id", ""))
        return web.json_response(body, status=status)

    async def _run(self, request: web.Request) -> web.StreamResponse:
        if not self._allowed(request):
            return web.json_response({"error": "token"}, status=401)
        row = json.loads(await request.read())
        self.rows.append(row)
        self.paths.append(request.path)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await self._tell()
        try:
            return await self.script(self, row, request)
        finally:
            self.in_flight -= 1
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[FakeGym], bool]) -> None:
        """Wait for something that calls bring about by coming or going."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def _aggregate(self, request: web.Request) -> web.StreamResponse:
        responses = json.loads(await request.read())["verify_responses"]
        if self.aggregate is not None:
            return web.json_response(self.aggregate)
        mean = sum(r["reward"] for r in responses) / len(responses)
        return web.json_response(
            {
                "group_level_metrics": [],
                "agent_metrics": {"n": len(responses)},
                "key_metrics": {"accuracy": mean},
            }
        )


def make_row(task: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    """A collated row."""
    named = {} if task is None else {"task_id": task}
    return {
        **named,
        "responses_create_params": {"input": f"question {task or index}"},
        "agent_ref": {"type": "responses_api_agents", "name": "agent"},
        "_ng_task_index": index,
        "_ng_rollout_index": 0,
        **fields,
    }


async def reset_connection(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
    """Drop the connection without an answer."""
    transport = request.transport
    assert transport is not None
    transport.abort()
    await asyncio.sleep(0)
    return web.Response()


def answer(payload: Any, status: int = 200) -> Script:
    """Always this answer: JSON, or text as it is."""

    async def script(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        return web.Response(text=text, status=status)

    return script


async def never_answers(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
    """Hold the call open until the caller gives it up."""
    await asyncio.Event().wait()
    return web.Response()
