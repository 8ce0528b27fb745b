"""Where results come from: ``x_run.json`` beside ``x.jsonl``, schema ``nemo-gym.run.v1``. Pure.

It is there from a run's first moment on, so that a killed run has it, and is completed when the run ends. A run that
was resumed has one segment for each time; a segment that says ``running`` while nobody holds the run's lock was killed.
Later versions may add keys; what this version does not know is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.shards import Shard

SCHEMA: Final = "nemo-gym.run.v1"

RUNNING: Final = "running"
FINISHED: Final = "finished"
DRAINED: Final = "drained"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
KILLED: Final = "killed"


@dataclass
class Segment:
    """One time that the run was started or resumed.

    ``status``: ``running``; ``finished`` (every rollout has come to its end, with a reward or without); ``drained`` (a
    first Ctrl-C: what was in flight has ended); ``stopped`` (by a signal); ``failed`` (a dead server, say: ``reason``);
    ``killed`` (found out when it was resumed or shown). ``scored`` and ``failed`` count this segment's rollouts,
    ``attempts`` the calls that it took. ``phases_s``: seconds of each phase. Times are UTC, ISO 8601.
    """

    started: str
    command: list[str]
    concurrency: int
    ended: str | None = None
    status: str = RUNNING
    reason: str | None = None
    scored: int = 0
    failed: int = 0
    attempts: int = 0
    phases_s: dict[str, float] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)


@dataclass
class RunRecord:
    """A run.

    ``run_id`` begins every rollout's id. ``plan_digest`` is that of the tasks in ``x_plan.json``, ``config_digest``
    that of ``x_config.yaml`` without what may change between segments, ``image_lock_digest`` that of what
    ``x_images.lock.json`` holds: None as long as that is not written, and for servers started elsewhere, whose address
    is ``registry``. ``num_repeats``: rollouts of a task. ``command`` is the first segment's. ``timeline``: the phases
    of every start of servers, ``{segment, phase, server, begin_s, end_s}``, in seconds since that start began.
    """

    run_id: str
    benchmark: str
    command: list[str]
    versions: dict[str, Any]
    host: dict[str, Any]
    plan_digest: str
    config_digest: str
    num_repeats: int
    shard: Shard | None = None
    registry: str | None = None
    image_lock_digest: str | None = None
    segments: list[Segment] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether the last segment got to its end."""
        return bool(self.segments) and self.segments[-1].status == FINISHED

    def to_json(self) -> str:
        """As the file has it."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def parse_run_record(text: str | bytes, where: str) -> RunRecord:
    """What ``to_json`` wrote; a ``ConfigError`` says what is wrong with anything else."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            found = document.get("schema") if isinstance(document, dict) else type(document).__name__
            raise ConfigError(f"{where} is no record of a run: needed the schema {SCHEMA!r}; found {found!r}.")
        segments = [_known(Segment, entry) for entry in document.get("segments", [])]
        shard = document.get("shard")
        return RunRecord(
            **{
                **_fields(RunRecord, document),
                "segments": segments,
                "shard": None if shard is None else Shard(int(shard["index"]), int(shard["count"])),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where} is no record of a run ({type(error).__name__}: {error}).") from error


def now_utc() -> str:
    """The time as the record has it: UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def masked_command(argv: Sequence[str], secret_options: Sequence[str], mask: str) -> list[str]:
    """A command line as typed, without the values of options that carry a secret.

    ``env:NAME`` and ``@PATH`` only say where the secret is, and stay.
    """
    shown: list[str] = []
    for word in argv:
        option, equals, value = word.partition("=")
        if shown and shown[-1] in secret_options:
            shown.append(word if _points_elsewhere(word) else mask)
        elif option in secret_options and equals:
            shown.append(word if _points_elsewhere(value) else f"{option}={mask}")
        else:
            shown.append(word)
    return shown


def _points_elsewhere(value: str) -> bool:
    return value.startswith(("env:", "@"))


def _known(kind: type[Segment], entry: Mapping[str, Any]) -> Segment:
    return kind(**_fields(kind, entry))


def _fields(kind: type[Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in kind.__dataclass_fields__ if name in entry}
