"""The logs of a session's servers as one sequence of lines: up to now, or as they are written."""

from __future__ import annotations

import contextlib
import heapq
import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.containers.engine import ContainerEngine, ContainerLog
from nemo_gym.deployment.status import ServerStatus, SessionStatus
from nemo_gym.errors import ConfigError, EngineNotFoundError

_READERS_END_S = 2.0
"""For all of them. Over ssh a log cannot be closed under its reader, which then ends with the process."""


@dataclass(frozen=True, slots=True)
class ServerLine:
    """A line of one server's log. ``record`` is what our own servers write, None for any other text."""

    server: str
    time: str
    text: str
    record: Mapping[str, Any] | None

    @property
    def rollout_id(self) -> str | None:
        """The rollout that the line belongs to, where it says so."""
        return None if self.record is None else self.record.get("rollout_id")


def choose_servers(session: SessionStatus, names: Sequence[str]) -> list[ServerStatus]:
    """The servers of these names, the registry included; all of them when there are none. ``ConfigError`` otherwise."""
    known = {server.name: server for server in session.everything}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"Session {session.session_id} has no server {name!r}. It has {', '.join(known) or 'none any more'}."
            )
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())


@contextlib.contextmanager
def open_logs(
    engine: ContainerEngine,
    servers: Sequence[ServerStatus],
    *,
    rollout_id: str | None = None,
    tail_lines: int | None = None,
    follow: bool = False,
) -> Iterator[Iterator[ServerLine]]:
    """The lines of these servers, each server's from its last ``tail_lines`` on (None: from its first).

    What is there already comes in the order of its times. With ``follow`` lines come as they are written, until every
    server has ended. With ``rollout_id`` the lines that do not carry it are left out.
    """
    with contextlib.ExitStack() as logs:
        opened: dict[str, ContainerLog] = {}
        for server in servers:
            with contextlib.suppress(EngineNotFoundError):  # removed since it was listed
                opened[server.name] = engine.open_log(server.container_id, tail_lines=tail_lines, follow=follow)
                logs.callback(opened[server.name].close)
        lines = logs.enter_context(_as_they_come(opened)) if follow else _in_order(opened)
        yield lines if rollout_id is None else (line for line in lines if line.rollout_id == rollout_id)


def _in_order(logs: Mapping[str, ContainerLog]) -> Iterator[ServerLine]:
    return heapq.merge(*(_lines(name, log) for name, log in logs.items()), key=lambda line: line.time)


def _lines(server: str, log: ContainerLog) -> Iterator[ServerLine]:
    for line in log:
        yield ServerLine(server, line.time, line.text, _record(line.text))


def _record(text: str) -> Mapping[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "message" in record else None


@contextlib.contextmanager
def _as_they_come(logs: Mapping[str, ContainerLog]) -> Iterator[Iterator[ServerLine]]:
    """Reads each log in a thread of its own, which ends with its log; closing the logs ends them all."""
    written: queue.SimpleQueue[ServerLine | None] = queue.SimpleQueue()

    def read(name: str, log: ContainerLog) -> None:
        try:
            for line in _lines(name, log):
                written.put(line)
        finally:
            written.put(None)

    readers = [
        threading.Thread(target=read, args=entry, name=f"nemo-gym-log-{entry[0]}", daemon=True)
        for entry in logs.items()
    ]
    for reader in readers:
        reader.start()
    try:
        yield _until_all_end(written, len(readers))
    finally:
        _close_all(logs.values())
        deadline = time.monotonic() + _READERS_END_S
        for reader in readers:
            reader.join(timeout=max(0.0, deadline - time.monotonic()))


def _until_all_end(written: queue.SimpleQueue[ServerLine | None], open_logs: int) -> Iterator[ServerLine]:
    while open_logs:
        line = written.get()
        if line is None:
            open_logs -= 1
        else:
            yield line


def _close_all(logs: Iterable[ContainerLog]) -> None:
    for log in logs:
        log.close()
