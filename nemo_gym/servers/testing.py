"""Servers in a test's own process, with real sockets.

::

    async with serving(Mcqa) as mcqa:
        reply = await mcqa.post("/verify", row)
        assert reply.status == 200
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any, Generic, TypeVar, cast

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from nemo_gym.servers.base import Server
from nemo_gym.servers.client import payload_of
from nemo_gym.servers.messages import Bootstrap, JsonDict

ServerT = TypeVar("ServerT", bound=Server)

SESSION_SECRET = "5e" * 32


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Running(Generic[ServerT]):
    """A server that runs, and a client for it that keeps cookies."""

    server: ServerT
    url: str
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """POST a JSON value, or bytes as they are."""
        data = payload_of(body if isinstance(body, bytes) else orjson.dumps(body))
        return await self._request("POST", path, data, headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self._request("GET", path, None, headers)

    def entry(self) -> JsonDict:
        """How other servers' configurations name this one: ``{name: {type: {implementation: address}}}``."""
        address = URL(self.url)
        return {self.server.name: {self.server.server_type: {"tested": {"host": address.host, "port": address.port}}}}

    async def _request(self, method: str, path: str, data: Any, headers: Mapping[str, str] | None) -> Answer:
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            return Answer(response.status, await response.read(), dict(response.headers))


def bootstrap_for(
    server_type: type[Server],
    settings: Mapping[str, Any] | None = None,
    *,
    name: str = "tested",
    config: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> Bootstrap:
    """What a server is told at start. ``config`` holds the entries of other servers and top-level keys."""
    entry = {name: {server_type.server_type: {"tested": dict(settings or {})}}}
    return Bootstrap(
        session_id="session", server_name=name, config={**(config or {}), **entry}, session_secret=SESSION_SECRET,
        token=token,
    )  # fmt: skip


@asynccontextmanager
async def serving(
    server_type: type[ServerT],
    settings: Mapping[str, Any] | None = None,
    *,
    name: str = "tested",
    config: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> AsyncIterator[Running[ServerT]]:
    """Run a server on a port of loopback that the system chooses."""
    server = server_type(bootstrap_for(server_type, settings, name=name, config=config, token=token))
    async with (
        serving_app(server.build_app()) as url,
        # Cookies of an address that is no name are kept only on request.
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        yield Running(server, url, session)


@asynccontextmanager
async def serving_app(app: web.Application) -> AsyncIterator[str]:
    """Run any aiohttp application, such as a scripted endpoint; yields its address."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = cast("tuple[str, int]", runner.addresses[0][:2])
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def start_worker_server(*modules: str) -> None:
    """Start the process that a ``BoundedPool``'s workers are forked from, with ``modules`` already imported.

    A process has one, with the modules of its first pool; here each test module gets its own. Workers also run this
    process's main module again, which is pytest's.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    forkserver.set_forkserver_preload(["pytest", *modules])
    forkserver.ensure_running()
