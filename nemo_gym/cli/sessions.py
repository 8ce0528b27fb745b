"""``gym env status``, ``logs`` and ``stop``: sessions that already run, found by their labels from any shell."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import Command, add_output_options, positive_int
from nemo_gym.cli.output import configure_logging, emit, emit_json, emit_table, note
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.containers.engine import ContainerEngine
    from nemo_gym.deployment.session_logs import ServerLine
    from nemo_gym.deployment.status import ServerStatus, SessionStatus

_RECORD_KEYS = ("time", "level", "server", "message", "traceback")


def add_session_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "session", nargs="?", metavar="SESSION", help="its id, or how it begins; may be left out when there is one only"
    )


# -- status --------------------------------------------------------------------------------------------------------


def _add_status_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_argument(parser)
    add_output_options(parser)


def _status(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment.status import connected, find_session, read_sessions

    configure_logging(arguments.verbose)
    with connected(os.environ) as engine:
        sessions = read_sessions(engine)
    if arguments.session is not None:
        sessions = [find_session(sessions, arguments.session)]
    if arguments.json:
        emit_json([_session_as_json(session) for session in sessions])
        return 0
    if not sessions:
        note("No session is on this engine.")
    for place, session in enumerate(sessions):
        if place:
            emit("")
        _show(session)
    return 0


def _show(session: SessionStatus) -> None:
    from nemo_gym.deployment.status import described

    emit(f"session {described(session)}")
    rows = [
        [server.name, server.server_type, _state(server), _address(server), server.started_at.partition(".")[0]]
        for server in session.everything
    ]
    emit_table(["server", "type", "state", "address", "started (UTC)"], rows)


def _state(server: ServerStatus) -> str:
    if server.oom_killed:
        return f"{server.state} ({server.exit_code}, out of memory)"
    return server.state if server.exit_code is None else f"{server.state} ({server.exit_code})"


def _address(server: ServerStatus) -> str:
    return server.url or ("internal" if server.is_running else "")


def _session_as_json(session: SessionStatus) -> dict[str, Any]:
    owner = session.owner
    return {
        "session_id": session.session_id,
        "benchmark": session.benchmark,
        "detached": session.detached,
        "owner": {
            "pid": None if owner is None else owner.pid,
            "host": None if owner is None else owner.host.partition("/")[0],
            "liveness": session.liveness.value,
        },
        "registry": None if session.registry is None else _server_as_json(session.registry),
        "servers": [_server_as_json(server) for server in session.servers],
    }


def _server_as_json(server: ServerStatus) -> dict[str, Any]:
    return {
        "name": server.name,
        "server_type": server.server_type,
        "state": server.state,
        "exit_code": server.exit_code,
        "oom_killed": server.oom_killed,
        "host": server.host,
        "port": server.port,
        "url": server.url,
        "started_at": server.started_at,
        "container_id": server.container_id,
    }


# -- logs ----------------------------------------------------------------------------------------------------------


def _add_logs_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_argument(parser)
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME", help="of this server only; may be repeated"
    )
    parser.add_argument("--rollout-id", metavar="ID", help="only the lines that belong to this rollout")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines are written, until Ctrl-C")
    parser.add_argument(
        "--tail", type=positive_int, metavar="N", help="begin with the last N lines of each server, not with its first"
    )
    add_output_options(parser)


def _logs(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment.session_logs import choose_servers, open_logs
    from nemo_gym.deployment.status import connected, find_session, read_sessions

    configure_logging(arguments.verbose)
    show = _line_as_json if arguments.json else _line_as_text
    with connected(os.environ) as engine:
        servers = choose_servers(find_session(read_sessions(engine), arguments.session), arguments.server)
        with open_logs(
            engine,
            servers,
            rollout_id=arguments.rollout_id,
            tail_lines=arguments.tail,
            follow=arguments.follow,
        ) as lines:
            for line in lines:
                emit(show(line))
    return 0


def _line_as_json(line: ServerLine) -> str:
    record = {"time": line.time, "message": line.text} if line.record is None else line.record
    return json.dumps({**record, "server": line.server}, ensure_ascii=False)


def _line_as_text(line: ServerLine) -> str:
    """``TIME SERVER LEVEL MESSAGE (key=value ...)``, and a traceback on lines of its own."""
    clock = line.time[11:23]
    if line.record is None:
        return f"{clock} {line.server} {line.text}"
    more = ", ".join(f"{key}={value}" for key, value in line.record.items() if key not in _RECORD_KEYS)
    text = f"{clock} {line.server} {line.record.get('level', '')} {line.record['message']}"
    text += f" ({more})" if more else ""
    return text if "traceback" not in line.record else f"{text}\n{line.record['traceback']}"


# -- stop ----------------------------------------------------------------------------------------------------------


def _add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_argument(parser)
    parser.add_argument("--all", action="store_true", help="every session on the engine")
    parser.add_argument(
        "--force", action="store_true", help="also one of which nobody here can tell whether its owner still uses it"
    )
    add_output_options(parser)


def _stop(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment.status import connected, find_session, read_sessions

    configure_logging(arguments.verbose)
    if arguments.all and arguments.session is not None:
        raise ConfigError(f"--all stops every session; leave it or {arguments.session!r} out.")
    with connected(os.environ) as engine:
        sessions = read_sessions(engine)
        chosen = sessions if arguments.all else [find_session(sessions, arguments.session)]
        return _stop_each(engine, chosen, arguments)


def _stop_each(engine: ContainerEngine, chosen: list[SessionStatus], arguments: argparse.Namespace) -> int:
    """Stop what can be; with ``--all``, one that cannot does not keep the others."""
    from nemo_gym.deployment.status import check_stoppable, stop_session

    stopped: list[str] = []
    left: dict[str, str] = {}
    for session in chosen:
        try:
            if not arguments.force:
                check_stoppable(session)
            stop_session(engine, session, force=True)
        except ConfigError as error:
            if not arguments.all:
                raise
            left[session.session_id] = str(error)
            note(f"gym: left alone: {error}")
            continue
        stopped.append(session.session_id)
        if not arguments.json:
            emit(f"stopped {session.session_id}")
    if arguments.json:
        emit_json({"stopped": stopped, "left": left})
    elif not chosen:
        note("No session is on this engine.")
    return 1 if left else 0


COMMANDS = [
    Command(
        "status",
        "show the sessions that run: their servers, addresses and owners",
        _add_status_arguments,
        _status,
        description="Show the sessions on the engine, whoever started them: their servers, addresses and owners.",
        takes_overrides=False,
    ),
    Command(
        "logs",
        "show the logs of a session's servers",
        _add_logs_arguments,
        _logs,
        description="Show the logs of a session's servers in the order of their times, or follow them.",
        takes_overrides=False,
    ),
    Command(
        "stop",
        "stop a session and remove everything of it",
        _add_stop_arguments,
        _stop,
        description=(
            "Stop a session, whoever started it, and remove its containers and networks. Returns once nothing of it is "
            "left."
        ),
        takes_overrides=False,
    ),
]
