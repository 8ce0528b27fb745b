"""Carries connections from a session's network to servers on the caller's loopback.

A model server at ``http://127.0.0.1:8000`` is invisible from a container, whose loopback is its own. The relay
listens on the session network's gateway, an address of this host that containers reach, and passes bytes both
ways. Containers of other networks could reach it too, so peers from outside the session's subnet are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from nemo_gym.errors import ConfigError

_BACKLOG = 1024
_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server on the caller's loopback."""

    host: str
    port: int


def bind_listener(gateway: str, target: Target) -> socket.socket:
    """A listening socket on the session network's gateway: on the target's own port where that is free there.

    Raises ``ConfigError`` where the gateway is not an address of this machine (Docker Desktop, rootless and
    remote engines keep their networks elsewhere).
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        try:
            listener.bind((gateway, target.port))
        except OSError:  # in use there, or a privileged port: any other will do
            listener.bind((gateway, 0))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"A server on this machine's loopback ({target.host}:{target.port}) was asked for, but the engine keeps "
            f"its networks elsewhere: {gateway} is not an address of this machine ({error}). "
            "Let the model server listen on an address that containers can reach, and name that address."
        ) from error
    return listener


async def serve(listener: socket.socket, target: Target, subnet: str) -> asyncio.Server:
    """Relay every connection of ``listener`` to ``target``, until the returned server is closed."""
    network = ipaddress.ip_network(subnet)
    return await asyncio.get_running_loop().create_server(
        lambda: _Inbound(target, network), sock=listener, backlog=_BACKLOG
    )


class _Side(asyncio.Protocol):
    """One of a connection's two ends: what it reads, the other end writes."""

    transport: asyncio.Transport | None = None
    other: _Side | None = None
    has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self.other.transport.write_eof()
        # half-closed connections are legal: the way back stays open until it has ended too
        return self.other is None or not self.other.has_ended

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    # backpressure: a full write buffer at this end stops the reading at the other
    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.resume_reading()


class _Inbound(_Side):
    """The end that a container opened."""

    def __init__(self, target: Target, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
        self._target = target
        self._network = network
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if peer is None or ipaddress.ip_address(peer[0]) not in self._network:
            transport.abort()  # type: ignore[attr-defined]
            return
        assert self.transport is not None
        self.transport.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        outbound = _Side()
        outbound.other = self
        assert self.transport is not None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: outbound, self._target.host, self._target.port)
        except OSError:  # TimeoutError is one
            self.transport.abort()
            return
        self.other = outbound
        if self.transport.is_closing():
            assert outbound.transport is not None
            outbound.transport.close()
        else:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connecting is not None and self.other is None:
            self._connecting.cancel()
        super().connection_lost(exc)


def close_all(servers: Sequence[asyncio.Server]) -> None:
    """Stop listening; connections under way go with the process."""
    for server in servers:
        server.close()
