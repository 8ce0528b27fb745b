"""The files of a run: results and failures appended as they arrive, and put in order at the end.

Beside the rollouts file ``x.jsonl`` stand ``x_materialized_inputs.jsonl`` (what was sent, written first),
``x_failures.jsonl`` (each failed attempt), ``x_aggregate_metrics.json``, ``x_images.lock.json`` (what the servers
ran from), ``x_plan.json``, ``x_config.yaml`` and ``x_run.json`` (what was run, and how), and with
``observability_enabled`` ``x_records.jsonl`` (what each server was asked and answered). Every line is handed to the
operating system whole, as it arrives, so that the death of this process costs no result that had arrived.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.journal import Journal, Key, encoded_line, whole_file
from nemo_gym.rollouts.replies import FAILURE_MARKERS
from nemo_gym.rollouts.rows import (
    AGENT_SERVER_TYPE,
    ATTEMPT_INDEX,
    ELAPSED_S,
    ROLLOUT_ID,
    ROLLOUT_INDEX,
    TASK_INDEX,
    find_agent_name,
    row_key,
)
from nemo_gym.rollouts.run import Attempt

SIDE_FILES: Final = ("_failures.jsonl", "_materialized_inputs.jsonl", "_records.jsonl")
"""How those files beside rollouts end that are called as rollouts may be."""

_IDENTITY: Final = ("agent_ref", TASK_INDEX, ROLLOUT_INDEX, ATTEMPT_INDEX, ROLLOUT_ID)


@dataclass(frozen=True, slots=True)
class ResultPaths:
    """Where the files of a run stand."""

    rollouts: Path

    @property
    def materialized_inputs(self) -> Path:
        return self._beside("_materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        return self._beside("_failures.jsonl")

    @property
    def aggregate_metrics(self) -> Path:
        return self._beside("_aggregate_metrics.json")

    @property
    def image_lock(self) -> Path:
        return self._beside("_images.lock.json")

    @property
    def records(self) -> Path:
        return self._beside("_records.jsonl")

    @property
    def plan(self) -> Path:
        return self._beside("_plan.json")

    @property
    def config(self) -> Path:
        return self._beside("_config.yaml")

    @property
    def run(self) -> Path:
        return self._beside("_run.json")

    @property
    def lock(self) -> Path:
        """Held by the process that writes the others."""
        return self.rollouts.with_name(f".{self.rollouts.stem}.lock")

    def is_being_written(self) -> bool:
        """Whether a process of this machine holds the lock."""
        try:
            with self.lock.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def all(self) -> tuple[Path, ...]:
        """All of them, the rollouts first."""
        return (
            self.rollouts,
            self.materialized_inputs,
            self.failures,
            self.aggregate_metrics,
            self.image_lock,
            self.records,
            self.plan,
            self.config,
            self.run,
        )

    def existing(self) -> dict[str, Path]:
        """The files that are there, by what they hold."""
        named = {
            "rollouts": self.rollouts,
            "failures": self.failures,
            "inputs": self.materialized_inputs,
            "metrics": self.aggregate_metrics,
            "plan": self.plan,
            "config": self.config,
            "images": self.image_lock,
            "run": self.run,
            "records": self.records,
        }
        return {name: path for name, path in named.items() if path.is_file()}

    def check(self, *, overwrite: bool) -> None:
        """See that the files can be written, before any work is done; make their folder."""
        self.check_folder()
        existing = list(self.existing().values())
        if existing and not overwrite:
            raise ConfigError(
                f"{existing[0]} exists already, and results are never overwritten unasked. Choose another --output, "
                "or add --resume to go on where it ended, or --overwrite to replace it."
            )

    def check_folder(self) -> None:
        """See that the files can be written; make their folder."""
        folder = self.rollouts.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Cannot write results to {folder}: {error.strerror or error}.") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"Cannot write results to {self.rollouts}: permission denied.")
        longest = self.materialized_inputs.with_name(f".{self.materialized_inputs.name}.{os.getpid()}")
        try:
            with contextlib.suppress(FileNotFoundError):
                longest.stat()  # a name that the system does not take is found out now
        except OSError as error:
            raise ConfigError(f"Cannot write results to {self.rollouts}: {error.strerror or error}.") from error
        if self.rollouts.is_dir():
            raise ConfigError(f"Cannot write results to {self.rollouts}: it is a folder.")

    def clear(self) -> None:
        """Remove what an earlier run left."""
        for path in self.existing().values():
            path.unlink()
        self.clear_partial()

    def clear_partial(self) -> None:
        """Remove files that a killed process was about to put in the place of others."""
        names = "|".join(re.escape(path.name) for path in self.all())
        partial = re.compile(rf"\.(?:{names})\.(?:\d+|partial|sorting|merging)")
        for path in self.rollouts.parent.iterdir():
            if partial.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _beside(self, suffix: str) -> Path:
        return self.rollouts.with_name(self.rollouts.stem + suffix)


class ResultWriter:
    """Writes a run's results as they arrive; ``finish`` leaves the files sorted by task, repeat and attempt.

    ``redact`` hides secrets in what a failed server said. ``rollouts`` and ``failures`` are the lines that earlier
    segments of the run have left.
    """

    def __init__(
        self,
        paths: ResultPaths,
        redact: Callable[[str], str] = str,
        *,
        rollouts: list[tuple[Key, int, int]] | None = None,
        failures: list[tuple[Key, int, int]] | None = None,
    ) -> None:
        self._redact = redact
        self._rollouts = Journal(paths.rollouts, rollouts)
        self._failures = Journal(paths.failures, failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._rollouts.close()
        self._failures.close()

    def add(self, attempt: Attempt) -> None:
        """Append the result, or the failure, of one attempt."""
        if attempt.outcome.failure is not None:
            record = failure_record(attempt)
            texts = {key: self._redact(record[key]) for key in ("reason", "body_tail")}
            self._failures.add((*row_key(attempt.row), attempt.number), record | texts)
        else:
            self._rollouts.add(row_key(attempt.row), result_record(attempt))

    def finish(self) -> None:
        """Put both files in order."""
        self._rollouts.finish()
        self._failures.finish()


def result_record(attempt: Attempt) -> dict[str, Any]:
    """The agent's reply, with what tells the rollout from others."""
    reply = attempt.outcome.reply or {}
    return {**reply, **_identity(attempt.row), ELAPSED_S: round(attempt.elapsed_s, 3)}


def failure_record(attempt: Attempt) -> dict[str, Any]:
    """What failed, how, and whether another attempt followed."""
    failure = attempt.outcome.failure
    if failure is None:
        raise ValueError("the attempt did not fail")
    reply = attempt.outcome.reply or {}
    markers: dict[str, Any] = {marker: reply[marker] for marker in FAILURE_MARKERS if marker in reply}
    return {
        **_identity(attempt.row),
        **markers,
        "failure_class": failure.failure_class,
        "server": failure.server,
        "status": failure.status,
        "reason": failure.reason,
        "body_tail": failure.body_tail,
        "final": attempt.final,
        ELAPSED_S: round(attempt.elapsed_s, 3),
    }


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of one JSON object a line, which is there whole or not at all."""
    with whole_file(path) as stream:
        stream.writelines(encoded_line(record) for record in records)


def read_results(path: Path) -> Iterator[dict[str, Any]]:
    """The results in a rollouts file, one at a time."""
    with path.open("rb") as stream:
        for line in stream:
            yield json.loads(line)


def write_aggregate_metrics(path: Path, replies: Mapping[str, Mapping[str, Any]]) -> None:
    """One entry for each agent: which it is, and its reply to ``/aggregate_metrics``."""
    entries = [{"agent_ref": {"type": AGENT_SERVER_TYPE, "name": name}, **reply} for name, reply in replies.items()]
    with whole_file(path) as stream:
        stream.write((json.dumps(entries, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))


def read_aggregate_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries that ``write_aggregate_metrics`` wrote; none where there is no such file or list."""
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def agents_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The agents that the rows name, each once."""
    return list(dict.fromkeys(name for name in map(find_agent_name, rows) if name))


def _identity(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in _IDENTITY if key in row}
