"""The results of a run, read back from its files in one pass and a few numbers for each rollout.

Whatever wrote them: this version, an earlier one, or another implementation of the protocol. A file may hold more than
fits into memory; no reply is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.replies import FAILURE_MARKERS, MARKED_FAILED, NO_REWARD, find_reward
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.rows import ELAPSED_S, ROLLOUT_INDEX, TASK_INDEX, find_agent_name

NameTask = Callable[[Mapping[str, Any]], str]
"""Gives the task id of a row or result."""

UNKNOWN_CLASS: Final = "unknown"


class StoredRollout(NamedTuple):
    """One result. ``elapsed_s`` and the tokens are None where they were not recorded."""

    task_index: int
    repeat: int
    task: str
    reward: float
    elapsed_s: float | None
    input_tokens: int | None
    output_tokens: int | None

    @property
    def key(self) -> tuple[int, int]:
        return self.task_index, self.repeat


class StoredFailure(NamedTuple):
    """A rollout that ended without a reward, by its last attempt."""

    task_index: int
    repeat: int
    task: str
    failure_class: str
    reason: str

    @property
    def key(self) -> tuple[int, int]:
        return self.task_index, self.repeat


@dataclass
class StoredResults:
    """What the files of one run hold: rollouts and failures in the order of task and repeat.

    ``expected`` is the number of rollouts that were to be run, None where no file says so; ``retries`` counts failed
    attempts that another one followed. ``notices`` are sentences for a person.
    """

    paths: ResultPaths
    rollouts: list[StoredRollout] = field(default_factory=list)
    failures: list[StoredFailure] = field(default_factory=list)
    retries: int = 0
    expected: int | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many rollouts have neither a result nor a failure: the run did not get to its end."""
        return max(0, (self.expected or 0) - len(self.rollouts) - len(self.failures))


class StoredLine(NamedTuple):
    """A line of a file: its number from 1 on, where it begins, its length in bytes, and the object it holds."""

    number: int
    place: int
    length: int
    record: dict[str, Any]


def read_stored(paths: ResultPaths, name_task: NameTask) -> StoredResults:
    """The results in ``paths``; a ``ConfigError`` names the file, and the line that is wrong."""
    if not paths.rollouts.is_file():
        raise ConfigError(f"There are no results at {paths.rollouts}. `gym eval run --output PATH.jsonl` writes some.")
    stored = StoredResults(paths)
    unrewarded: dict[tuple[int, int], StoredFailure] = {}
    scored = _read_rollouts(stored, name_task, unrewarded)
    if paths.failures.is_file():
        _read_failures(stored, name_task, scored, unrewarded)
    stored.failures = sorted(unrewarded.values())
    if paths.materialized_inputs.is_file():
        stored.expected = count_lines(paths.materialized_inputs)
    return stored


def _read_rollouts(
    stored: StoredResults, name_task: NameTask, unrewarded: dict[tuple[int, int], StoredFailure]
) -> set[tuple[int, int]]:
    path, scored, names, twice = stored.paths.rollouts, set[tuple[int, int]](), dict[str, str](), 0
    for line in iter_objects(path, stored.notices):
        key = checked_key(line, path)
        if key in scored:
            twice += 1
            continue
        record = line.record
        reward = find_reward(record)
        task = _named(line, path, name_task)
        task = names.setdefault(task, task)  # one object for all repeats
        marked = [marker for marker in FAILURE_MARKERS if record.get(marker)]
        if reward is None or marked:
            why = f"the result on line {line.number} has no reward" if reward is None else f"marked {marked[0]}"
            unrewarded[key] = StoredFailure(*key, task, MARKED_FAILED if marked else NO_REWARD, why)
            continue
        scored.add(key)
        unrewarded.pop(key, None)
        tokens_in, tokens_out = tokens_of(record)
        elapsed_s = record.get(ELAPSED_S)
        if not isinstance(elapsed_s, int | float):
            elapsed_s = None
        stored.rollouts.append(StoredRollout(*key, task, reward, elapsed_s, tokens_in, tokens_out))
    if twice:
        stored.notices.append(f"{path}: {twice} rollouts stand there twice; the first of each counts.")
    _name_by_inputs(stored, name_task)
    stored.rollouts.sort()
    return scored


def _name_by_inputs(stored: StoredResults, name_task: NameTask) -> None:
    """Give rollouts the task ids of their rows where the replies, of servers made elsewhere, do not hold the row."""
    nameless = {rollout.task_index for rollout in stored.rollouts if rollout.task == str(rollout.task_index)}
    names = _names_from_inputs(stored, name_task, nameless)
    if names:
        stored.rollouts = [r._replace(task=names.get(r.task_index, r.task)) for r in stored.rollouts]


def _read_failures(
    stored: StoredResults,
    name_task: NameTask,
    scored: set[tuple[int, int]],
    unrewarded: dict[tuple[int, int], StoredFailure],
) -> None:
    path, attempts, finally_failed = stored.paths.failures, 0, dict[tuple[int, int], StoredFailure]()
    for line in iter_objects(path, stored.notices):
        key, record = checked_key(line, path), line.record
        attempts += 1
        if key in scored or record.get("final") is False:
            continue
        failure_class = str(record.get("failure_class") or record.get("_ng_failure_class") or UNKNOWN_CLASS)
        # a failure's record has no row: its task id is that of the index, unless a repeat of it has a result
        task = _named(line, path, name_task)
        finally_failed[key] = StoredFailure(*key, task, failure_class, str(record.get("reason") or ""))
    names = {rollout.task_index: rollout.task for rollout in stored.rollouts} if finally_failed else {}
    nameless = {failure.task_index for failure in finally_failed.values()} - names.keys()
    names |= _names_from_inputs(stored, name_task, nameless)
    for key, failure in finally_failed.items():
        unrewarded[key] = failure._replace(task=names.get(failure.task_index, failure.task))
    stored.retries = attempts - len(finally_failed)


def _names_from_inputs(stored: StoredResults, name_task: NameTask, indices: set[int]) -> dict[int, str]:
    """The task ids of these positions, where the file of inputs has ids; empty where rows are known by position."""
    path, names = stored.paths.materialized_inputs, dict[int, str]()
    if not indices or not path.is_file():
        return names
    for line in iter_objects(path, stored.notices):
        index = checked_key(line, path)[0]
        name = _named(line, path, name_task)
        if line.number == 1 and name == str(index):
            break
        if index in indices:
            names[index] = name
    return names


def iter_objects(path: Path, notices: list[str]) -> Iterator[StoredLine]:
    """The lines of a file, each an object; blank ones are passed over.

    A last line that was cut off in the middle is left out, and told in ``notices``. Any other line that is no JSON
    object is a ``ConfigError``.
    """
    place = 0
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                length = len(line)
                record = _parse_object(line)
                if record is not None:
                    yield StoredLine(number, place, length, record)
                elif not line.endswith(b"\n") and line.strip():
                    notices.append(
                        f"{path}, line {number}: cut off after {length} bytes, and left out. The run was killed while "
                        "it wrote this line; gym eval run --resume runs it again."
                    )
                elif line.strip():
                    raise ConfigError(
                        f"{path}, line {number}: needed a JSON object; found {_shown(line)}. Something else has "
                        "written to this file: mend or take out that line."
                    )
                place += length
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from error


def count_lines(path: Path) -> int:
    """How many whole lines a file has."""
    with path.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def has_reward(record: Mapping[str, Any]) -> bool:
    """Whether a result has a reward that counts: one that is not marked as failed."""
    return find_reward(record) is not None and not any(record.get(marker) for marker in FAILURE_MARKERS)


def tokens_of(record: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The tokens that a rollout read and wrote, as its response's usage has them, in the names of either API."""
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    if not isinstance(usage, Mapping):
        return None, None
    return (
        _count(usage, "input_tokens", "prompt_tokens"),
        _count(usage, "output_tokens", "completion_tokens"),
    )


def checked_key(line: StoredLine, path: Path) -> tuple[int, int]:
    """Task and rollout index of a line; ``ConfigError`` when it has none."""
    record = line.record
    task_index, repeat = record.get(TASK_INDEX), record.get(ROLLOUT_INDEX, 0)
    for name, value in ((TASK_INDEX, task_index), (ROLLOUT_INDEX, repeat)):
        if isinstance(value, bool) or not isinstance(value, int):
            found = "it is missing" if value is None else f"found {value!r:.60}"
            raise ConfigError(
                f"{path}, line {line.number}: needs {name}, a whole number that says which rollout it is; {found}. Is "
                "this a file of rollouts?"
            )
    return int(record[TASK_INDEX]), int(repeat)


def agent_of(record: Mapping[str, Any]) -> str:
    """The agent that a result came from; empty where it names none."""
    return find_agent_name(record) or ""


def _named(line: StoredLine, path: Path, name_task: NameTask) -> str:
    try:
        return name_task(line.record)
    except ConfigError as error:
        raise ConfigError(f"{path}, line {line.number}: {error}") from error


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        # orjson takes neither lone surrogates nor NaN, which the standard library writes
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def _shown(line: bytes) -> str:
    text = line[:60].decode("utf-8", errors="replace").rstrip("\n")
    return repr(text) + (" ..." if len(line) > 60 else "")


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
