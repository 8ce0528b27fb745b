"""Sessions on the engine in memory: with the labels that real ones carry, and logs that a test writes."""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Iterator
from dataclasses import dataclass, field

from nemo_gym.containers.engine import LogLine
from nemo_gym.containers.labels import ROLE, SERVER, SERVER_TYPE, Owner, session_labels
from nemo_gym.errors import EngineNotFoundError
from tests.unit.fake_engine import FakeEngine

TYPES = {"registry": "registry", "policy_model": "responses_api_models", "agent": "responses_api_agents"}


def dead_owner() -> Owner:
    """One of this host that has ended: no process has this start time."""
    return dataclasses.replace(Owner.current(), start="0")


def owner_elsewhere() -> Owner:
    """One that cannot be judged from here."""
    return dataclasses.replace(Owner.current(), host="far-away/abc", boot="another", pid=77)


class FakeContainerLog:
    """Lines that a test writes; the log ends with ``end`` or when it is closed."""

    def __init__(self, lines: list[LogLine], follow: bool) -> None:
        self._queue: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self.closed = 0
        for line in lines:
            self._queue.put(line)
        if not follow:
            self.end()

    def write(self, line: LogLine) -> None:
        self._queue.put(line)

    def end(self) -> None:
        self._queue.put(None)

    def close(self) -> None:
        self.closed += 1
        self.end()

    def __iter__(self) -> Iterator[LogLine]:
        while (line := self._queue.get()) is not None:
            yield line


@dataclass
class SessionEngine(FakeEngine):
    """``written`` holds each container's log by its ID, ``open_logs`` the logs that are being read."""

    written: dict[str, list[LogLine]] = field(default_factory=dict)
    open_logs: dict[str, FakeContainerLog] = field(default_factory=dict)

    def open_log(self, container_id: str, *, tail_lines: int | None, follow: bool) -> FakeContainerLog:
        self._called("open_log")
        if container_id not in self.containers:
            raise EngineNotFoundError(f"No such container: {container_id}", status=404)
        lines = self.written.get(container_id, [])
        log = FakeContainerLog(lines if tail_lines is None else lines[-tail_lines:], follow)
        self.open_logs[container_id] = log
        return log

    def add_session(
        self,
        session_id: str,
        owner: Owner | None = None,
        *,
        detached: bool = False,
        published_host: str = "127.0.0.1",
        first_port: int = 40000,
    ) -> None:
        """A network, a registry, a model and an agent, all running; container IDs are ``id-<session>-<name>``."""
        labels = session_labels(
            session_id,
            owner or Owner.current(),
            published_host=published_host,
            benchmark="tiny",
            detached=detached,
        )
        self.networks[f"net-{session_id}"] = labels
        for place, (name, server_type) in enumerate(TYPES.items()):
            container_id = self.add(
                f"{session_id}-{name}",
                {**labels, SERVER: name, SERVER_TYPE: server_type, ROLE: "server"},
                host_ports=(first_port + place,),
            )
            self.change(container_id, started_at=f"2026-11-29T17:00:0{place}.5Z")
