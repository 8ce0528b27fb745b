"""One report for a failed start: which server, which phase, how it ended, its log, the likely cause, the remedy.

Pure. The cause is guessed from texts only here; a server that fails in a way not listed gets its log and no guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.containers.deaths import Death
from nemo_gym.containers.readiness import NotReadyError, NotReadyReason
from nemo_gym.errors import ServerStartError

LOG_LINES = 25
_LINE_LENGTH = 500

_NO_WAY_OUT = " The server stands on the internal network (container.network: internal), which leads to no endpoint."

_NOT_OURS = r"nemo_gym(?!\.servers\b|\.errors\b)[.']"  # what the base image has of this package is these two

# (what the log shows, likely cause, remedy); the first that fits is given
_CAUSES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(rf"No module named '{_NOT_OURS}|cannot import name .* from '{_NOT_OURS}"),
        "it needs another nemo_gym than the one in the base image",
        "Name that distribution in the requirements.txt of its image folder, as in nemo-gym==VERSION.",
    ),
    (
        re.compile(r"KeyError: 'NEMO_GYM_CONFIG_(?:DICT|PATH)'"),
        "it was written elsewhere and looks for its configuration in its environment",
        "Set `container: {config_from: environment}` in its config.",
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '([^']+)'"),
        "a distribution is missing in the image",
        "Add it to the requirements.txt in the server's image folder.",
    ),
    (
        re.compile(r"Read-only file system"),
        "the server writes outside of /tmp",
        "Let it write to /tmp, or set container.read_only: false for it.",
    ),
    (
        re.compile(r"ValidationError|validation error"),
        "its settings in the config are not what it expects",
        "Correct the keys that the log names.",
    ),
    (
        # the last line of a traceback, also inside the JSON lines that our own servers log; or "what: SomeError: why"
        re.compile(r"(?:^|\"|\\n)[\w.]*(?:Error|Exception)\b|\b\w+(?:Error|Exception): ", re.MULTILINE),
        "an exception while it started",
        "Mend what the log's last line names, in the server's app.py or in its settings.",
    ),
)


@dataclass(frozen=True, slots=True)
class FailedServer:
    """What is known of a server that failed to start. ``log`` is already redacted."""

    name: str
    server_type: str
    phase: str
    elapsed_s: float
    log: str = ""
    is_internal: bool = False


def died(server: FailedServer, death: Death) -> ServerStartError:
    """The server's container ended before it was ready."""
    how = _how_it_ended(death)
    cause, remedy = _guess(server.log, death)
    when = "before the session was" if server.phase == "serving" else "before it was"
    return _error(server, f"{how} {when} ready", cause, remedy, death)


def refused(server: FailedServer, said: str) -> ServerStartError:
    """The engine refused to create or start the server's container."""
    return _error(server, "could not be started", f"the engine says: {said}", "Mend what the engine names, and retry.")


def not_ready(
    server: FailedServer,
    error: NotReadyError,
    as_the_caller_sees: Callable[[str], str],
    config_key_of: Callable[[str], str],
) -> ServerStartError:
    """The server runs, but is late, is another one, or says that it cannot be ready.

    ``as_the_caller_sees`` turns addresses as the container sees them into those in the user's config, and
    ``config_key_of`` the name of one of the server's settings into the key that the user gave it with.
    """
    detail = as_the_caller_sees(error.detail)
    key = error.answer.get("key")
    if error.reason in (NotReadyReason.FAILED, NotReadyReason.ENDPOINT_LATE) and key:
        waited = f" after {server.elapsed_s:.0f} s" if error.reason is NotReadyReason.ENDPOINT_LATE else ""
        return ServerStartError(
            f"The model endpoint is not usable{waited}: {detail}\n"
            f"It was asked from inside the container of {server.name!r}. Check {config_key_of(str(key))} in the config "
            f"or overrides.{_NO_WAY_OUT if server.is_internal else ''}",
            server=server.name,
            phase=server.phase,
        )
    if error.reason is NotReadyReason.WRONG_SERVER:
        remedy = "Stop what answers there, and try again. "
        remedy += "A server written elsewhere needs `container: {config_from: environment}`."
        return _error(server, "is not what answers on its port", detail, remedy)
    remedy = "Give it more time with server_ready_timeout_seconds, or mend what the log shows."
    return _error(server, f"is not ready: {detail}", None, remedy)


def _how_it_ended(death: Death) -> str:
    if death.oom_killed:
        return "was killed for using more memory than its limit"
    if death.exit_code is None:
        return f"was lost ({death.error or 'the engine no longer knows it'})"
    return f"exited with code {death.exit_code}" + (f" ({death.error})" if death.error else "")


def _guess(log: str, death: Death) -> tuple[str | None, str]:
    if death.oom_killed:
        return "its memory limit is too low", "Raise container.memory in the server's config."
    if death.exit_code == 0:
        return (
            "its program came to its end instead of serving",
            "Let the image's command run the server in the foreground, until SIGTERM.",
        )
    for pattern, cause, remedy in _CAUSES:
        if pattern.search(log):
            return cause, remedy
    if death.exit_code in (126, 127):  # a shell's, for what it cannot run or does not find (POSIX 2.8.2)
        return (
            "its command, or the /bin/sh that one written elsewhere is started through, is not in its image",
            "Name its command with container.command, as it is called inside the image.",
        )
    return None, "Mend what its log shows."


def _error(
    server: FailedServer, what: str, cause: str | None, remedy: str, death: Death | None = None
) -> ServerStartError:
    kind = {
        "responses_api_models": "model server",
        "responses_api_agents": "agent server",
        "resources_servers": "resources server",
        "environment_servers": "environment server",
    }.get(server.server_type, "server")
    tail = "\n".join(map(_shortened, server.log.strip().splitlines()[-LOG_LINES:]))
    lines = [
        f"The {kind} {server.name!r} {what} (phase: {server.phase}, after {server.elapsed_s:.1f} s).",
        f"End of its log:\n{_indented(tail)}" if tail else "It logged nothing.",
    ]
    if cause:
        lines.append(f"Likely cause: {cause}.")
    lines.append(remedy)
    return ServerStartError(
        "\n".join(lines),
        server=server.name,
        phase=server.phase,
        exit_code=death.exit_code if death else None,
        oom_killed=death.oom_killed if death else False,
        log_tail=tail,
    )


def with_logs(error: ServerStartError, folder: Path) -> ServerStartError:
    """The same failure, whose message also says where every server's log is."""
    return ServerStartError(
        f"{error}\nThe logs of all servers: {folder}",
        server=error.server,
        phase=error.phase,
        exit_code=error.exit_code,
        oom_killed=error.oom_killed,
        log_tail=error.log_tail,
    )


def _shortened(line: str) -> str:
    if len(line) <= _LINE_LENGTH:
        return line
    half = _LINE_LENGTH // 2
    return f"{line[:half]} [...] {line[-half:]}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
