"""Agents: they take a row, talk to a model and a resources server, and return what the verifier says."""

from __future__ import annotations

import asyncio

from aiohttp import web
from pydantic import ConfigDict, Field

from nemo_gym.servers.base import (
    BodyParser,
    Route,
    Server,
    ServerSettings,
    adopt_rollout_id,
    decode,
    json_response,
)
from nemo_gym.servers.client import Cookies, DownstreamError, Reply
from nemo_gym.servers.messages import (
    AggregateRequest,
    JsonDict,
    ResponsesParams,
    RunRequest,
    ServerRef,
)


class AgentSettings(ServerSettings):
    """Settings of every agent: whom it talks to, and how long one call to the resources server may take.

    The model server has deadlines of its own, towards its endpoint.
    """

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    resources_server: ServerRef
    model_server: ServerRef
    resources_timeout_s: float | None = Field(default=3600.0, gt=0)


class AgentServer(Server):
    """Base of agents that have one model server and one resources server.

    A subclass writes ``run`` and ``respond``; ``call`` reaches the two servers.
    """

    server_type = "responses_api_agents"
    settings: AgentSettings

    async def run(self, row: JsonDict, body: bytes) -> bytes:
        """A whole rollout: the verifier's reply as it came. ``body`` is the row as it arrived."""
        raise RuntimeError(f"{type(self).__name__} has no run method")

    async def respond(self, params: JsonDict, cookies: Cookies) -> bytes:
        """The agent's answer to a conversation. ``cookies`` are those of the resources server, kept up to date."""
        raise RuntimeError(f"{type(self).__name__} has no respond method")

    async def call(self, ref: ServerRef, path: str, body: bytes, cookies: Cookies) -> Reply:
        """POST to one of this agent's servers."""
        timeout_s = self.settings.resources_timeout_s if ref == self.settings.resources_server else None
        try:
            async with asyncio.timeout(timeout_s):
                return await self.client.post(ref.name, self._urls[ref], path, body, cookies=cookies)
        except TimeoutError:
            detail = f"it took longer than resources_timeout_s ({timeout_s:g} s)"
            raise DownstreamError(ref.name, path, status=None, detail=detail, timed_out=True) from None

    def routes(self) -> list[Route]:
        refs = (self.settings.resources_server, self.settings.model_server)
        self._urls = {ref: self.url_of(ref) for ref in refs}
        self._parse_row = BodyParser(RunRequest)
        self._parse_params = BodyParser(ResponsesParams)
        self._parse_aggregate = BodyParser(AggregateRequest)
        return [
            Route("POST", "/run", self._run),
            Route("POST", "/v1/responses", self._responses),
            Route("POST", "/aggregate_metrics", self._aggregate),
        ]

    async def _run(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        row = decode(body)
        self._parse_row(row)
        adopt_rollout_id(row)
        return json_response(await self.run(row, body))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        params: JsonDict = self._parse_params(decode(await request.read()))
        cookies: Cookies = dict(request.cookies)
        response = json_response(await self.respond(params, cookies))
        for name, value in cookies.items():
            response.headers.add("Set-Cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax")
        return response

    async def _aggregate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self._parse_aggregate(decode(body))
        reply = await self.call(self.settings.resources_server, "/aggregate_metrics", body, {})
        return json_response(reply.raise_for_status().body)
