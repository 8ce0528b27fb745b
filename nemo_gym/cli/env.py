"""``gym env``: a benchmark's servers, and its configuration."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import Command, ConfigRequest, add_config_options, add_model_options
from nemo_gym.cli.output import configure_logging, emit, emit_exactly, emit_json, emit_table, note

if TYPE_CHECKING:
    from nemo_gym.deployment.launch import RunningSession

DEFAULT_REGISTRY_PORT = 11000


def _add_start_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    add_model_options(parser)


def _start(arguments: argparse.Namespace) -> int:
    from nemo_gym.environment.serving import serve

    configure_logging(arguments.verbose)
    request = ConfigRequest.from_arguments(arguments)
    with serve(
        request.serving_paths(),
        request.overrides,
        registry_port=arguments.registry_port,
        default_registry_port=DEFAULT_REGISTRY_PORT,
        search_dirs=request.search_dirs,
    ) as session:
        _show_session(session, as_json=arguments.json)
        note("Serving. Ctrl-C stops the servers.")
        wait_for_signal()
    return 0


def wait_for_signal() -> None:
    """Wait until a signal raises, as ``signals_raise`` has it."""
    threading.Event().wait()


def _show_session(session: RunningSession, *, as_json: bool) -> None:
    registry = session.registry_server
    if as_json:
        emit_json(_session_as_json(session))
        return
    emit(f"registry: http://{registry.host}:{registry.port}")
    rows = [
        [server.name, server.server_type, server.implementation, f"http://{server.host}:{server.port}"]
        for server in session.servers
    ]
    emit_table(["server", "type", "implementation", "address"], rows)


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
    add_model_options(parser, serves=False)


def _resolve(arguments: argparse.Namespace) -> int:
    from nemo_gym.config.redaction import redact_config
    from nemo_gym.config.resolve import dump_config, to_plain

    configure_logging(arguments.verbose)
    request = ConfigRequest.from_arguments(arguments)
    config = request.load_for_planning() if arguments.model_type is None else request.load_for_serving()
    shown = redact_config(to_plain(config))
    if arguments.json:
        emit_json(shown)
        return 0
    # As comments: a file that pulls them in anew would not be what they gave once resolved.
    paths = shown.pop("config_paths", [])
    emit_exactly("".join(f"# from {path}\n" for path in paths) + dump_config(shown))
    return 0


COMMANDS = [
    Command(
        "start",
        "start a benchmark's servers, and stop them on Ctrl-C",
        _add_start_arguments,
        _start,
        description=(
            "Start a benchmark's servers as containers and serve until Ctrl-C. Prints where the registry and each "
            f"server answer\nonce all are ready. The registry's port: --registry-port, else head_server.port, else "
            f"{DEFAULT_REGISTRY_PORT}."
        ),
    ),
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
