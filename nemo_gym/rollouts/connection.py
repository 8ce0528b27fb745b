"""The HTTP sessions through which one event loop talks to one registry and its agents.

They are open exactly as long as somebody uses them. So nothing of them outlives a call, whichever event loop it ran
in and however that loop ends, and nobody has to close a runner between two event loops. The registry's host view is
read anew with them: by then, other servers may stand behind the same address.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
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


@dataclass
class RegistryMemory:
    """What is known of a registry and its agents from one call to the next."""

    plain_agents: set[str] = field(default_factory=set)
    """URLs of agents that have no ``/ng-rollout/{rollout_id}`` routes."""
    correlating_agents: set[str] = field(default_factory=set)
    """URLs of agents that have answered on one."""


class RegistryConnection:
    """One registry as seen from the running event loop."""

    def __init__(self, address: RegistryAddress, memory: RegistryMemory) -> None:
        import aiohttp

        self.address = address
        self.memory = memory
        # Two sessions: polls of the registry must never queue behind rollouts that wait for a connection.
        self._registry_session = _open_session(
            aiohttp.ClientTimeout(total=REGISTRY_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S), limit=8
        )
        self.rollouts = _open_session(
            aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S), limit=connection_budget()
        )
        self.client = RegistryClient(self._registry_session, address)
        self.death_watch = DeathWatch(self.client, address.url)
        self._host_view: HostView | None = None
        self._loading = asyncio.Lock()

    async def aclose(self) -> None:
        """Close the sessions; calls still open break."""
        try:
            await self._registry_session.close()
        finally:
            await self.rollouts.close()
        # The event loop closes the sockets in its next round, which must come before the loop itself ends.
        await asyncio.sleep(0)

    async def load_host_view(self) -> HostView:
        """The host view as the registry serves it now; ``RegistryNotReadyError`` as long as there is none."""
        self._host_view = await self.client.load_host_view()
        return self._host_view

    async def get_host_view(self) -> HostView:
        """The host view, read once; a ``ConfigError`` says what to do about a registry that has none."""
        async with self._loading:
            if self._host_view is not None:
                return self._host_view
            try:
                return await self.load_host_view()
            except RegistryNotReadyError as error:
                raise ConfigError(
                    f"The registry at {self.address.url} is not ready: {error}. Start the servers (serve_benchmark, "
                    "or `gym env start --benchmark NAME`); to wait for servers that another process is starting, "
                    "call `await runner.wait_until_ready(timeout_s=...)` first."
                ) from error


class ConnectionPool:
    """Shares one connection among the calls that an event loop has open to a registry."""

    def __init__(self) -> None:
        self._shared: dict[tuple[asyncio.AbstractEventLoop, RegistryAddress], _Shared] = {}
        self._memories: dict[RegistryAddress, RegistryMemory] = {}

    @contextlib.asynccontextmanager
    async def connected(self, registry: RegistryAddress) -> AsyncIterator[RegistryConnection]:
        """A connection for the running event loop; the last to leave closes it."""
        key = (asyncio.get_running_loop(), registry)
        shared = self._shared.get(key)
        if shared is None:
            memory = self._memories.setdefault(registry, RegistryMemory())
            shared = self._shared[key] = _Shared(RegistryConnection(registry, memory))
        shared.users += 1
        try:
            yield shared.connection
        finally:
            shared.users -= 1
            if shared.users == 0:
                if self._shared.get(key) is shared:
                    del self._shared[key]
                await shared.connection.aclose()

    async def aclose(self) -> None:
        """Close what the running event loop still has open; its calls break."""
        loop = asyncio.get_running_loop()
        for key in [key for key in self._shared if key[0] is loop]:
            await self._shared.pop(key).connection.aclose()


@dataclass
class _Shared:
    connection: RegistryConnection
    users: int = 0


def _open_session(timeout: aiohttp.ClientTimeout, *, limit: int) -> aiohttp.ClientSession:
    import aiohttp

    return aiohttp.ClientSession(
        timeout=timeout,
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=IDLE_CONNECTION_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def connection_budget() -> int:
    """How many connections this process can hold beside the files it has open; 0 when there is no limit.

    Calls beyond it wait for a connection, instead of failing for want of a file descriptor.
    """
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return 0
    try:
        in_use = sum(1 for _ in Path("/dev/fd").iterdir())
    except OSError:
        in_use = 0
    return max(_FEWEST_CONNECTIONS, soft_limit - in_use - _RESERVED_DESCRIPTORS)
