"""What is found out about a server that failed: how its container ended, and what it logged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

from nemo_gym.containers.deaths import Death, DeathWatch
from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.deployment import failures
from nemo_gym.deployment.topology import REGISTRY, ServedServer
from nemo_gym.errors import EngineError, EngineNotFoundError, EngineUnavailableError


class Diagnosis:
    """Asks the engine about the servers of one session. ``redact`` takes the secrets out of a log."""

    def __init__(
        self, engine: ContainerEngine, servers: Mapping[str, ServedServer], redact: Callable[[str], str]
    ) -> None:
        self._engine = engine
        self._servers = servers
        self._redact = redact

    def failed(self, server: str, phase: str, began: float, container_id: str | None) -> failures.FailedServer:
        """A server that failed in ``phase``, with the end of its log where it has one."""
        served = self._servers.get(server)
        return failures.FailedServer(
            name=server,
            server_type=served.instance.server_type if served else REGISTRY,
            phase=phase,
            elapsed_s=time.monotonic() - began,
            log="" if container_id is None else self.log_tail(container_id),
            is_internal=served is not None and served.is_internal,
        )

    def log_tail(self, container_id: str, lines: int = failures.LOG_LINES) -> str:
        """The redacted end of a container's log; empty when it cannot be read."""
        with contextlib.suppress(EngineError, EngineUnavailableError):  # the failure itself is what matters
            return self._redact(self._engine.read_log(container_id, lines))
        return ""

    def find_death(self, container_id: str, watch: DeathWatch) -> Death | None:
        """How the container ended; None when it runs, as far as anybody knows."""
        try:
            state = self._engine.inspect_container(container_id)
        except EngineNotFoundError:
            return Death(container_id, None, False, "the container was removed")
        except (EngineError, EngineUnavailableError):
            return watch.find_death(container_id)
        if state.is_dead:
            return Death(container_id, state.exit_code, state.oom_killed, state.error)
        return watch.find_death(container_id)
