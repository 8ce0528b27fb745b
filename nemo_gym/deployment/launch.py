"""Serve a resolved config: images, network, one container per server, ready; and nothing left afterwards.

``serve_config`` is the whole of it, as a context manager. What it leaves behind: on return, on an exception and on
Ctrl-C (once or more often) nothing, and that is verified; when the process dies in any other way, SIGKILL included,
the session's keeper removes everything within about a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nemo_gym.containers import ports
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.deployment.session import PhaseTime, RunningServer, RunningSession, Session
from nemo_gym.deployment.topology import build_topology
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

__all__ = ["PhaseTime", "RunningServer", "RunningSession", "serve_config"]


@contextlib.contextmanager
def serve_config(
    config: Mapping[str, Any],
    *,
    registry_port: int | None = None,
    default_registry_port: int | None = None,
    search_dirs: Sequence[str] = (),
) -> Iterator[RunningSession]:
    """Serve every server of a resolved config. Yields once all of them, and the model endpoint, answer.

    The registry's port is ``registry_port``, else ``head_server.port`` where the config sets it, else
    ``default_registry_port``, else one that the engine assigns. Raises ``ConfigError`` (see its kin in
    ``nemo_gym.errors``) when a server cannot be started; nothing is left running then.
    """
    topology = build_topology(config)
    option, port = _registry_port(config, registry_port, default_registry_port)
    engine = DockerEngine.connect(os.environ)
    try:
        if port is not None:
            ports.check_port_free(engine, "127.0.0.1", port, option)
        if not engine.endpoint.is_local:
            raise ConfigError(
                f"The engine at {engine.endpoint.url} ({engine.endpoint.source}) is on another machine, and servers "
                "are published on its loopback only. Run this there, or use this machine's own engine."
            )
        session = Session(engine, topology, port, option)
        try:
            yield session.start(search_dirs)
        finally:
            _finish(session.stop)
    finally:
        engine.close()


def _registry_port(
    config: Mapping[str, Any], registry_port: int | None, default_registry_port: int | None
) -> tuple[str, int | None]:
    if registry_port is not None:
        return "registry_port", registry_port
    head_server = config.get("head_server")
    if isinstance(head_server, Mapping) and head_server.get("port") is not None:
        return "head_server.port", int(head_server["port"])
    return "registry_port", default_registry_port


def _finish(stop: Callable[[], None]) -> None:
    """Run ``stop`` to its end, whatever the user types meanwhile; a Ctrl-C that came is raised afterwards."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            stop()
        except BaseException as error:  # handed over to the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, name="nemo-gym-teardown")
    thread.start()
    interrupted: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt as error:
            interrupted = error
            logger.warning("still removing containers, a few seconds more")
    if errors:
        raise errors[0]
    if interrupted is not None:
        raise interrupted
