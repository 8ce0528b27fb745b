"""Serve a resolved config: images, network, one container per server, ready; and nothing left afterwards.

``serve_config`` is the whole of it, as a context manager. What it leaves behind: on return, on an exception and on
Ctrl-C (once or more often) nothing, and that is verified; when the process dies in any other way, SIGKILL included,
the session's keeper removes everything within seconds. It installs no signal handler.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nemo_gym.config.sources import search_roots
from nemo_gym.containers import ports
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.deployment import foreign
from nemo_gym.deployment.running import PhaseTime, RunningServer, RunningSession
from nemo_gym.deployment.server_images import is_left_out
from nemo_gym.deployment.session import Session
from nemo_gym.deployment.settings import parse_serving_settings, start_timeout_s
from nemo_gym.deployment.topology import build_topology
from nemo_gym.errors import ConfigError, EngineError

logger = logging.getLogger(__name__)

__all__ = ["PhaseTime", "RunningServer", "RunningSession", "serve_config", "start_detached"]


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
    with _session(config, registry_port, default_registry_port, search_dirs) as session:
        with _refusals_explained():
            running = session.start(search_dirs)
        yield running


def start_detached(
    config: Mapping[str, Any],
    *,
    registry_port: int | None = None,
    default_registry_port: int | None = None,
    search_dirs: Sequence[str] = (),
) -> RunningSession:
    """Like ``serve_config``, and leave the session running in the care of its keeper process.

    It ends with ``deployment.status.stop_session``, with a SIGTERM to the keeper, or with its registry.
    """
    with (
        _session(config, registry_port, default_registry_port, search_dirs, detached=True) as session,
        _refusals_explained(),
    ):
        running = session.start(search_dirs)
        session.hand_over()
        return running


@contextlib.contextmanager
def _session(
    config: Mapping[str, Any],
    registry_port: int | None,
    default_registry_port: int | None,
    search_dirs: Sequence[str],
    *,
    detached: bool = False,
) -> Iterator[Session]:
    """A session that is about to start, and its end whatever happens."""
    roots = search_roots(search_dirs)
    topology = build_topology(config, lambda instance: is_left_out(instance, roots))
    engine = DockerEngine.connect(os.environ, start_timeout_s(config))
    try:
        settings = parse_serving_settings(
            config,
            engine.endpoint,
            os.environ,
            registry_port=registry_port,
            default_registry_port=default_registry_port,
        )
        foreign.check(topology, settings)
        if settings.registry_port is not None:
            ports.check_port_free(engine, settings.bind_address, settings.registry_port, settings.port_option)
        session = Session(engine, topology, settings, detached=detached)
        if detached and settings.keep_logs:
            logger.warning(
                "a detached session's logs are not kept in %s: type `gym env logs %s` before `gym env stop`",
                settings.log_folder,
                session.session_id,
            )
        try:
            yield session
        except BaseException as error:
            _finish(session.stop, error)
            raise
        _finish(session.stop)
    finally:
        engine.close()


@contextlib.contextmanager
def _refusals_explained() -> Iterator[None]:
    """What the engine refuses while servers start is an answer to the user's request, and says so."""
    try:
        yield
    except EngineError as error:
        raise ConfigError(f"The container engine refused a step of the start: {error}") from error


def _finish(stop: Callable[[], None], original: BaseException | None = None) -> None:
    """Run ``stop`` to its end, whatever the user types meanwhile; a Ctrl-C that came is raised afterwards.

    What goes wrong in ``stop`` is raised too, but never in the place of ``original``, which the caller is about to
    raise: it becomes a note of that.
    """
    if sys.is_finalizing():
        # a block that was left open when the interpreter ended: no thread can run any more, and waiting for one
        # would last for ever. The keeper sees this process end, and removes the session.
        return
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            stop()
        except BaseException as error:  # handed over to the waiting thread
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="nemo-gym-teardown")
    thread.start()
    interrupted: KeyboardInterrupt | None = None
    while not done.is_set():
        try:
            # not join(): one that is interrupted takes its thread for ended from then on (CPython 3.11)
            done.wait()
        except KeyboardInterrupt as error:
            interrupted = error
            logger.warning("still removing containers, a few seconds more")
    thread.join()
    for failure in errors:
        if original is None:
            raise failure
        logger.error("%s", failure)
        original.add_note(str(failure))
    if interrupted is not None and not isinstance(original, KeyboardInterrupt):
        raise interrupted
