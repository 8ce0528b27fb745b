"""``gym env records``: what the servers of a running session have recorded of a rollout."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from nemo_gym.cli.arguments import Command, add_output_options
from nemo_gym.cli.output import configure_logging, emit_json, emit_table, note
from nemo_gym.cli.sessions import add_session_argument
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.deployment.status import SessionStatus
    from nemo_gym.rollouts.records import Gathered, RolloutRecord
    from nemo_gym.rollouts.registry_client import RegistryAddress

_MOST_SHOWN: Final = 60


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_argument(parser)
    parser.add_argument("--rollout-id", metavar="ID", help="the rollout; left out, those that are known are listed")
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME", help="of this server only; may be repeated"
    )
    add_output_options(parser)


def _records(arguments: argparse.Namespace) -> int:
    import asyncio

    from nemo_gym.deployment.session_logs import choose_servers
    from nemo_gym.deployment.status import connected, find_session, read_sessions
    from nemo_gym.rollouts.collection import RolloutCollectionHelper
    from nemo_gym.rollouts.rows import check_rollout_id

    configure_logging(arguments.verbose)
    with connected(os.environ) as engine:
        session = find_session(read_sessions(engine), arguments.session)
    chosen = {server.name for server in choose_servers(session, arguments.server)}
    registry, helper = _registry_of(session), RolloutCollectionHelper()
    if arguments.rollout_id is None:
        found = asyncio.run(helper.load_recorded_rollouts(registry))
        if arguments.json:
            emit_json([{"rollout_id": rollout.rollout_id, "time": rollout.time} for rollout in found])
        else:
            rows = [[rollout.rollout_id, rollout.time.partition(".")[0]] for rollout in found]
            emit_table(["rollout", "last record (UTC)"], rows)
        return 0
    gathered = asyncio.run(helper.load_records(registry, check_rollout_id(arguments.rollout_id)))
    _show([record for record in gathered.records if record.server in chosen], gathered, arguments)
    return 0


def _registry_of(session: SessionStatus) -> RegistryAddress:
    from nemo_gym.config.token import token_of
    from nemo_gym.rollouts.registry_client import RegistryAddress

    registry = session.registry
    if registry is None or registry.host is None or registry.port is None:
        raise ConfigError(
            f"The registry of session {session.session_id} does not run, and records are read through it. "
            f"`gym env status {session.session_id}` shows what is left."
        )
    return RegistryAddress(registry.host, registry.port, token_of(os.environ))


def _show(records: Sequence[RolloutRecord], gathered: Gathered, arguments: argparse.Namespace) -> None:
    if arguments.json:
        emit_json([record.to_dict() for record in records])
    else:
        emit_table(["time (UTC)", "server", "what", "status", "ms", "tokens", "said"], [_cells(r) for r in records])
    for server, why in gathered.unasked.items():
        if not arguments.server or server in arguments.server:
            note(f"No records of server {server}: {why}.")


def _cells(record: RolloutRecord) -> list[str]:
    what = f"{record.kind} {record.path}" if record.kind in ("tool_call", "request") else record.kind
    status = "" if record.status is None else str(record.status)
    took = f"{record.duration_s * 1000:.1f}"
    return [record.time[11:23], record.server, what, status, took, _tokens(record.usage), _shortened(said_by(record))]


def _tokens(usage: Mapping[str, Any] | None) -> str:
    """``IN+OUT``, in the names of either API."""
    if not usage:
        return ""
    counts = (usage.get("input_tokens", usage.get("prompt_tokens")), usage.get("output_tokens"))
    tokens_in, tokens_out = counts[0], usage.get("completion_tokens") if counts[1] is None else counts[1]
    return f"{tokens_in}+{tokens_out}"


def said_by(record: RolloutRecord) -> str:
    """What a record's answer comes down to: an error, a reward, or what a model said."""
    if record.status is None:
        return "the caller left before the answer"
    response = record.response if isinstance(record.response, Mapping) else {}
    if record.status >= 400:
        error = response.get("error")
        return str(error.get("message", error) if isinstance(error, Mapping) else error or record.response or "")
    retried = f"(asked {len(record.endpoint_failures) + 1} times) " if record.endpoint_failures else ""
    reward = response.get("reward") if record.reward is None else record.reward
    if reward is not None:
        return f"reward {reward}"
    return retried + _model_output(response)


def _model_output(response: Mapping[str, Any]) -> str:
    from nemo_gym.servers.messages import output_text

    if "head" in response and "tail" in response:
        return str(response["head"])
    items = [item for item in response.get("output") or () if isinstance(item, dict)]
    for choice in response.get("choices") or ():
        message = choice.get("message") or {}
        items.append({"content": message.get("content"), "type": "message"})
        asked_for = [call.get("function") or {} for call in message.get("tool_calls") or ()]
        items += [{"type": "function_call", **function} for function in asked_for]
    calls = [f"{i.get('name')}({i.get('arguments')})" for i in items if i.get("type") == "function_call"]
    text = output_text({"output": items}).strip()
    return " ".join([text, *calls] if text else calls)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 1] + "…"


COMMANDS = [
    Command(
        "records",
        "show what the servers recorded of a rollout: calls, answers, times, tokens",
        _add_arguments,
        _records,
        description=(
            "Show what the servers of a session were asked in one rollout and answered, in the order of the times;\n"
            "whole with --json. Servers record when they were started with observability_enabled=true.\n"
            "Without --rollout-id the rollouts that records are kept of are listed."
        ),
        takes_overrides=False,
    ),
]
