"""What a running session is to those who use it, and how long each part of its start took."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nemo_gym.config.config_types import BaseServerConfig

logger = logging.getLogger(__name__)


def server_url(host: str, port: int) -> str:
    """The URL of a server, with an IPv6 address in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready, and where it is reached from the caller; on an internal network, nowhere."""

    name: str
    server_type: str
    implementation: str
    container_id: str
    host: str | None
    port: int | None

    @property
    def url(self) -> str | None:
        """Where it answers, for those who are outside."""
        return None if self.host is None or self.port is None else server_url(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """How long one phase took, in seconds since the call; ``server`` is empty for the session's own phases."""

    phase: str
    server: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RunningSession:
    """A session that serves."""

    session_id: str
    registry_server: BaseServerConfig
    servers: tuple[RunningServer, ...]
    timeline: tuple[PhaseTime, ...]
    images: Mapping[str, str] = field(default_factory=dict)  # by the name that a lock file has each under


@dataclass(slots=True)
class Clock:
    """The timeline of one start."""

    begin: float = field(default_factory=time.monotonic)
    phases: list[PhaseTime] = field(default_factory=list)

    @contextlib.contextmanager
    def measure(self, phase: str, server: str = "") -> Iterator[None]:
        """Note how long the block takes."""
        started = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self.phases.append(PhaseTime(phase, server, started - self.begin, ended - self.begin))
            logger.debug("%s%s: %.3f s", f"{server}: " if server else "", phase, ended - started)
