"""A line to a running container that outlives the engine's own end."""

from __future__ import annotations

import threading

from nemo_gym.containers.engine import ContainerEngine, Stdin
from nemo_gym.errors import EngineError


class ReopenedStdin:
    """A container's stdin, opened anew when it is found cut.

    An engine that restarts under living containers cuts every connection to them.
    """

    def __init__(self, engine: ContainerEngine, container_id: str, stdin: Stdin) -> None:
        self._engine = engine
        self._container_id = container_id
        self._stdin = stdin
        self._lock = threading.Lock()

    def send(self, data: bytes) -> None:
        """Write all of ``data``. Raises what the engine does when the container cannot be reached again either."""
        with self._lock:
            try:
                self._stdin.send(data)
            except EngineError:
                self._stdin.close()
                self._stdin = self._engine.open_stdin(self._container_id)
                self._stdin.send(data)

    def close(self) -> None:
        with self._lock:
            self._stdin.close()
