"""The HTTP sessions through which one event loop talks to one registry and its agents.

The sessions belong to a task of the loop, so they are closed with it: ``asyncio.run`` ends every task that is
left. Nobody has to close a runner between two event loops, and no connection outlives the loop it belongs to.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.death_watch import DeathWatch
from nemo_gym.rollouts.registry_client import (
    HostView,
    RegistryAddress,
    RegistryClient,
    RegistryNotReadyError,
)

if TYPE_CHECKING:
    import aiohttp

REGISTRY_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 60.0
IDLE_CONNECTION_S: Final = 2.0
"""Idle connections are given up sooner than any common server gives them up (uvicorn: 5 s), so that a request
is never sent down one that its server is just closing."""

_RESERVED_DESCRIPTORS: Final = 64
_FEWEST_CONNECTIONS: Final = 16


class RegistryConnection:
    """One registry as seen from the running event loop. ``open`` it there; it ends with the loop or ``aclose``."""

    def __init__(
        self,
        address: RegistryAddress,
        registry_session: aiohttp.ClientSession,
        rollout_session: aiohttp.ClientSession,
    ) -> None:
        self.address = address
        self.rollouts = rollout_session
        self.client = RegistryClient(registry_session, address)
        self.death_watch = DeathWatch(self.client, address.url)
        self.plain_agents: set[str] = set()
        """URLs of agents that have no ``/ng-rollout/{rollout_id}`` routes."""
        self.correlating_agents: set[str] = set()
        """URLs of agents that have answered on one."""
        self._owner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._host_view: HostView | None = None
        self._loading = asyncio.Lock()

    @classmethod
    async def open(cls, address: RegistryAddress) -> RegistryConnection:
        """A connection for the running event loop; nothing is sent yet."""
        opened: asyncio.Future[RegistryConnection] = asyncio.get_running_loop().create_future()
        owner = asyncio.create_task(cls._own(address, opened), name="nemo_gym rollout sessions")
        connection = await opened
        connection._owner = owner
        return connection

    @classmethod
    async def _own(cls, address: RegistryAddress, opened: asyncio.Future[RegistryConnection]) -> None:
        import aiohttp

        # Two sessions: polls of the registry must never queue behind rollouts that wait for a connection.
        registry_session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=REGISTRY_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=8, keepalive_timeout=IDLE_CONNECTION_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        rollout_session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=connection_budget(), keepalive_timeout=IDLE_CONNECTION_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        async with registry_session, rollout_session:
            connection = cls(address, registry_session, rollout_session)
            if not opened.cancelled():
                opened.set_result(connection)
                await connection._closing.wait()

    async def aclose(self) -> None:
        """Close the sessions; calls still open break."""
        self._closing.set()
        if self._owner is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._owner

    @property
    def is_open(self) -> bool:
        return self._owner is not None and not self._owner.done() and not self._closing.is_set()

    async def load_host_view(self) -> HostView:
        """The host view, read once; ``RegistryNotReadyError`` as long as there is none."""
        async with self._loading:
            if self._host_view is None:
                self._host_view = await self.client.load_host_view()
            return self._host_view

    async def get_host_view(self) -> HostView:
        """The host view, or a ``ConfigError`` that says what to do about a registry that has none."""
        try:
            return await self.load_host_view()
        except RegistryNotReadyError as error:
            raise ConfigError(
                f"The registry at {self.address.url} is not ready: {error}. Start the servers (serve_benchmark, "
                "or `gym env start --benchmark NAME`); to wait for servers that another process is starting, "
                "call `await runner.wait_until_ready(timeout_s=...)` first."
            ) from error

    def forget_host_view(self) -> None:
        """Read it anew next time: other servers may stand behind the same registry address by then."""
        self._host_view = None


def connection_budget() -> int:
    """How many connections this process can hold beside the files it has open; 0 when there is no limit."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return 0
    try:
        in_use = sum(1 for _ in Path("/dev/fd").iterdir())
    except OSError:
        in_use = 0
    return max(_FEWEST_CONNECTIONS, soft_limit - in_use - _RESERVED_DESCRIPTORS)
