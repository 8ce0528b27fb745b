"""What the keeper does for a detached session, which has no other owner: tells its registry of deaths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from nemo_gym.containers.deaths import Death, DeathWatch, death_line
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.labels import selector
from nemo_gym.errors import EngineError, EngineUnavailableError


class Adoption:
    """``servers``: container ID -> server name.

    ``on_registry_death`` is called, in another thread, when the registry has died or was removed: without it nobody
    finds the servers, and the session is over.
    """

    def __init__(
        self, session_id: str, registry_id: str, servers: Mapping[str, str], on_registry_death: Callable[[], None]
    ) -> None:
        self._registry_id = registry_id
        self._servers = servers
        self._on_registry_death = on_registry_death
        self._engine = DockerEngine.connect(os.environ)
        self._stdin = self._engine.open_stdin(registry_id)
        self._watch = DeathWatch(self._engine, selector(session_id))
        for container_id in (registry_id, *servers):
            self._watch.watch(container_id)
        self._watch.notify(self._tell)

    def _tell(self, death: Death) -> None:
        if death.container_id == self._registry_id:
            self._on_registry_death()
        elif death.container_id in self._servers:
            with contextlib.suppress(EngineError, EngineUnavailableError):  # the registry is going as well
                self._stdin.send(death_line(self._servers[death.container_id], death))

    def close(self) -> None:
        """Let go of the engine."""
        self._watch.close()
        self._stdin.close()
        self._engine.close()
