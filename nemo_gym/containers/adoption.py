"""What the keeper does for a detached session, which has no other owner: tells its registry of deaths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from nemo_gym.containers.deaths import Death, DeathWatch, death_line
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.containers.labels import selector
from nemo_gym.containers.reopened_stdin import ReopenedStdin
from nemo_gym.errors import EngineError, EngineNotFoundError, EngineUnavailableError


class Adoption:
    """``servers``: container ID -> server name.

    ``on_registry_death`` is called, in any thread and maybe more than once, when the registry has died or was removed:
    without it nobody finds the servers, and the session is over. Making one takes over the engine's connection, and
    raises what the engine does when the session is over already.
    """

    def __init__(
        self,
        engine: ContainerEngine,
        session_id: str,
        registry_id: str,
        servers: Mapping[str, str],
        on_registry_death: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._registry_id = registry_id
        self._servers = servers
        self._on_registry_death = on_registry_death
        with contextlib.ExitStack() as unless_adopted:
            unless_adopted.callback(engine.close)
            self._stdin = ReopenedStdin(engine, registry_id, engine.open_stdin(registry_id))
            unless_adopted.callback(self._stdin.close)
            self._watch = DeathWatch(engine, selector(session_id))
            unless_adopted.callback(self._watch.close)
            for container_id in (registry_id, *servers):
                self._watch.watch(container_id)
            self._watch.notify(self._tell)
            self._tell_of_the_past()
            self._let_go = unless_adopted.pop_all()

    @classmethod
    def begin(
        cls, session_id: str, registry_id: str, servers: Mapping[str, str], on_registry_death: Callable[[], None]
    ) -> Adoption:
        """Adopt on the engine that this process's environment leads to."""
        return cls(DockerEngine.connect(os.environ), session_id, registry_id, servers, on_registry_death)

    def _tell_of_the_past(self) -> None:
        """Who died between the owner's last look and the first of this watch. The registry may be told twice."""
        for container_id in (self._registry_id, *self._servers):
            try:
                state = self._engine.inspect_container(container_id)
            except EngineNotFoundError:
                self._tell(Death(container_id, None, False, "the container was removed"))
            else:
                if state.is_dead:
                    self._tell(Death(container_id, state.exit_code, state.oom_killed, state.error))

    def _tell(self, death: Death) -> None:
        if death.container_id == self._registry_id:
            self._on_registry_death()
        elif death.container_id in self._servers:
            line = death_line(self._servers[death.container_id], death)
            # when the registry is not to be reached at all, its own death is what counts, and that is watched
            with contextlib.suppress(EngineError, EngineUnavailableError):
                self._stdin.send(line)

    def close(self) -> None:
        """Let go of the engine. Idempotent."""
        self._let_go.close()
