"""``gym env``: a benchmark's servers, and its configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nemo_gym.cli import records, sessions
from nemo_gym.cli.arguments import Command, ConfigRequest, add_config_options, add_lock_option, add_model_options
from nemo_gym.cli.image_progress import show_image_progress
from nemo_gym.cli.output import configure_logging, emit, emit_exactly, emit_json, emit_table, format_table, note
from nemo_gym.cli.planning import config_as_yaml
from nemo_gym.errors import NemoGymError

if TYPE_CHECKING:
    from nemo_gym.deployment.launch import PhaseTime, RunningSession

DEFAULT_REGISTRY_PORT = 11000


def _add_start_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    add_model_options(parser)
    add_lock_option(parser)
    parser.add_argument("--detach", action="store_true", help="return once all are ready, and leave them running")


def _start(arguments: argparse.Namespace) -> int:
    from nemo_gym.environment.serving import serve, serve_detached

    configure_logging(arguments.verbose)
    request = ConfigRequest.from_arguments(arguments)
    paths, overrides = request.serving_paths(), request.overrides
    options: dict[str, Any] = {
        "registry_port": arguments.registry_port,
        "default_registry_port": DEFAULT_REGISTRY_PORT,
        "search_dirs": request.search_dirs,
    }
    if arguments.detach:
        with show_image_progress():
            session = serve_detached(paths, overrides, **options)
        _show_session(session, arguments)
        note(f"Serving in the background. `gym env stop {session.session_id}` stops the servers.")
        return 0
    with show_image_progress(), serve(paths, overrides, **options) as session:
        _show_session(session, arguments)
        note("Serving. Ctrl-C stops the servers.")
        raise NemoGymError(wait_until_over(session))


def wait_until_over(session: RunningSession) -> str:
    """Wait until the session has ended by itself, and return why. A signal raises, as ``signals_raise`` has it."""
    from nemo_gym.deployment import status

    with status.connected(os.environ) as engine:
        return status.wait_until_over(engine, session.session_id)


def _show_session(session: RunningSession, arguments: argparse.Namespace) -> None:
    from nemo_gym.deployment.running import server_url

    if arguments.verbose:
        note(format_timeline(session.timeline))
    if arguments.json:
        emit_json(_session_as_json(session))
        return
    registry = session.registry_server
    emit(f"session: {session.session_id}")
    emit(f"registry: {server_url(registry.host, registry.port)}")
    rows = [[s.name, s.server_type, s.implementation, s.url or "internal"] for s in session.servers]
    emit_table(["server", "type", "implementation", "address"], rows)


def format_timeline(timeline: Sequence[PhaseTime]) -> str:
    """When each phase of a start began and how long it took, in seconds; one that holds others stands before them."""
    phases = sorted(timeline, key=lambda phase: (phase.begin_s, -phase.end_s))
    rows = [[p.phase, p.server, f"{p.begin_s:.3f}", f"{p.end_s - p.begin_s:.3f}"] for p in phases]
    return format_table(["phase", "server", "from s", "took s"], rows)


def _session_as_json(session: RunningSession) -> dict[str, Any]:
    registry = session.registry_server
    return {
        "session_id": session.session_id,
        "registry_server": {"host": registry.host, "port": registry.port},
        "servers": [
            {
                "name": server.name,
                "server_type": server.server_type,
                "implementation": server.implementation,
                "host": server.host,
                "port": server.port,
                "container_id": server.container_id,
            }
            for server in session.servers
        ],
    }


def _add_resolve_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    add_model_options(parser, serves=False, without_type="the configuration is what planning sees when left out")


def _resolve(arguments: argparse.Namespace) -> int:
    from nemo_gym.config.redaction import redact_config
    from nemo_gym.config.resolve import to_plain

    configure_logging(arguments.verbose)
    request = ConfigRequest.from_arguments(arguments)
    config = request.load_for_planning() if arguments.model_type is None else request.load_for_serving()
    plain = to_plain(config)
    if arguments.json:
        emit_json(redact_config(plain))
    else:
        emit_exactly(config_as_yaml(plain))
    return 0


COMMANDS = [
    Command(
        "start",
        "start a benchmark's servers; Ctrl-C stops them, or with --detach `gym env stop`",
        _add_start_arguments,
        _start,
        description=(
            "Start a benchmark's servers as containers and serve until Ctrl-C. Prints where the registry and each "
            f"server answer\nonce all are ready. The registry's port: --registry-port, else head_server.port, else "
            f"{DEFAULT_REGISTRY_PORT}.\nWith --detach the servers go on when the command and its shell have ended; "
            "`gym env status`, `logs` and `stop` find them from any shell."
        ),
    ),
    *sessions.COMMANDS,
    *records.COMMANDS,
    Command(
        "resolve",
        "print the configuration as resolved, secrets hidden",
        _add_resolve_arguments,
        _resolve,
        description=(
            "Print the configuration as resolved, secrets hidden: as YAML that reads back as the same configuration, "
            "or as JSON.\nWithout --model-type it is what planning and preparing see; with it, what serving sees."
        ),
    ),
]
