"""What the servers have recorded of a rollout, read back from a registry by the rollout's id.

Servers record when ``observability_enabled`` is set in the config they were started with.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.registry_client import RegistryClient, RegistryNotReadyError
from nemo_gym.rollouts.rows import ROLLOUT_ID

if TYPE_CHECKING:
    from nemo_gym.rollouts.collection import RolloutCollectionHelper
    from nemo_gym.rollouts.registry_client import RegistryAddress
    from nemo_gym.rollouts.run import Attempt

logger = logging.getLogger(__name__)

OBSERVABILITY: Final = "observability_enabled"
_AT_ONCE: Final = 4  # leaves connections for the polls that tell of deaths


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One request of a rollout, as the server that answered it has recorded it.

    ``time`` is when it came (UTC, ISO 8601). ``kind`` is ``run``, ``agent_call``, ``seed``, ``model_call``,
    ``tool_call``, ``verification``, ``metrics`` or ``request``. ``status`` is None when the caller left before the
    answer. ``request`` and ``response`` are JSON as it went, ``{head, tail}`` of one that was too long, or None when
    none was kept; their true sizes stand beside them. ``usage`` are a model call's tokens as the endpoint counted
    them; token ids and log probabilities, where an endpoint gives them, stand in its ``response``.
    ``endpoint_failures`` are the endpoint's failures after which it was asked again, ``reward`` is what a verification
    came to, and ``more`` holds what a server of a later version adds.
    """

    time: str
    rollout_id: str
    server: str
    kind: str
    method: str
    path: str
    status: int | None
    duration_s: float
    request: Any = None
    request_bytes: int = 0
    response: Any = None
    response_bytes: int = 0
    model: str | None = None
    usage: Mapping[str, Any] | None = None
    endpoint_failures: tuple[str, ...] = ()
    reward: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As the server gave it."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "more"}
        return {**own, "endpoint_failures": list(self.endpoint_failures), **self.more}


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """A rollout that records are kept of; ``time`` is that of the latest."""

    rollout_id: str
    time: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a registry has gathered. ``unasked`` names servers that had no part in it, and why."""

    records: list[RolloutRecord]
    unasked: Mapping[str, str]


async def load_records(client: RegistryClient, rollout_id: str) -> Gathered:
    """A rollout's records in the order of their times; ``ConfigError`` says why there are none."""
    answer = await _load(client, f"/ng-rollout/{rollout_id}/records")
    try:
        records = [parse_record(record) for record in answer["records"]]
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"The registry at {client.url} gives records that are none: {error}.") from error
    return Gathered(records, answer.get("unasked") or {})


async def load_recorded_rollouts(client: RegistryClient) -> list[RecordedRollout]:
    """The rollouts that records are kept of, the latest first; ``ConfigError`` says why there are none."""
    answer = await _load(client, "/ng-rollout")
    return [RecordedRollout(str(entry["rollout_id"]), str(entry["time"])) for entry in answer["rollouts"]]


def parse_record(record: Mapping[str, Any]) -> RolloutRecord:
    """A record as JSON has it."""
    known = {f.name for f in fields(RolloutRecord)} - {"more"}
    own = {name: value for name, value in record.items() if name in known}
    own["endpoint_failures"] = tuple(own.get("endpoint_failures") or ())
    return RolloutRecord(**own, more={name: value for name, value in record.items() if name not in known})


async def _load(client: RegistryClient, path: str) -> dict[str, Any]:
    try:
        status, body = await client.get(path)
    except RegistryNotReadyError as error:
        raise ConfigError(f"The registry at {client.url} cannot be asked for records: {error}.") from error
    answer: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        read = json.loads(body)
        answer = read if isinstance(read, dict) else {}
    if status == 200 and isinstance(answer.get("records", answer.get("rollouts")), list):
        return answer
    raise ConfigError(_why_there_are_none(client, status, answer))


def _why_there_are_none(client: RegistryClient, status: int, answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    kind, message = (error.get("type"), error.get("message")) if isinstance(error, Mapping) else (None, None)
    if kind == "observability_off":
        return (
            "Nothing is recorded: these servers were started without observability_enabled. Start them with "
            "observability_enabled=true."
        )
    if kind == "no_records":
        return f"The servers behind {client.url} have no such records: {message}"
    if status in (401, 403):
        return client.describe_refusal(status)
    said = f": {message}" if message else ""
    return f"The registry at {client.url} gives no records: it answered HTTP {status}{said}."


class RecordCollector:
    """Writes the records of a run's rollouts to a file, a line each, as the rollouts end.

    The servers' own go with the servers. Reading them holds up no rollout; what cannot be read is warned of once.
    """

    def __init__(self, helper: RolloutCollectionHelper, registry: RegistryAddress, path: Path) -> None:
        self._helper = helper
        self._registry = registry
        self._path = path
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._lost = 0
        self._file: BinaryIO | None = None

    async def __aenter__(self) -> Self:
        self._file = self._path.open("ab")
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close()
        if self._lost > 1:
            logger.warning("of %d attempts in all there are no records in %s", self._lost, self._path)

    def add(self, attempt: Attempt) -> None:
        """Read and write what the servers have recorded of one attempt."""
        task = asyncio.create_task(self._collect(str(attempt.row[ROLLOUT_ID])))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, rollout_id: str) -> None:
        try:
            async with self._slots:
                gathered = await self._helper.load_records(self._registry, rollout_id)
        except ConfigError as error:
            self._lose(rollout_id, error)
            return
        lines = [json.dumps(record.to_dict(), separators=(",", ":")) + "\n" for record in gathered.records]
        try:
            if self._file is None:
                self._lose(rollout_id, "the file is closed")
            else:
                self._file.write("".join(lines).encode())
                self._file.flush()
        except OSError as error:
            self._lose(rollout_id, error)
            self._close()  # nothing may follow a line that was cut off

    def _lose(self, rollout_id: str, why: object) -> None:
        self._lost += 1
        if self._lost == 1:
            logger.warning("no records of rollout %s in %s: %s", rollout_id, self._path, why)

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # it tries once more to write what could not be written
                self._file.close()
            self._file = None
