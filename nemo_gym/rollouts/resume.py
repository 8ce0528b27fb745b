"""What earlier segments of a run have left, so that it goes on exactly there."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.journal import Key, mend_last_line, read_lines
from nemo_gym.rollouts.report import RunTally
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.rows import ATTEMPT_INDEX, row_key
from nemo_gym.rollouts.run import Tried


@dataclass
class Earlier:
    """The lines that count, what has a result, what was tried in vain, and what a person should be told."""

    rollouts: list[tuple[Key, int, int]] = field(default_factory=list)
    failures: list[tuple[Key, int, int]] = field(default_factory=list)
    scored: set[Key] = field(default_factory=set)
    tried: dict[Key, Tried] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def load_earlier(paths: ResultPaths, wanted: Container[Key], tally: RunTally) -> Earlier:
    """Mend the files of a run that was cut off, and take what they hold into ``tally``.

    ``wanted`` are the keys of the run's rows. A last line that was written in part is cut off; its rollout is run
    again. Of two results of one rollout the first counts. ``ConfigError``: a file holds what this run cannot have
    written.
    """
    earlier = Earlier()
    paths.clear_partial()
    for path in (paths.rollouts, paths.failures, paths.records):
        cut = mend_last_line(path)
        if cut:
            earlier.notices.append(f"{path}: the last line was cut off mid-write; its {cut} bytes are removed.")
    if paths.rollouts.is_file():
        _take_rollouts(paths, wanted, tally, earlier)
    if paths.failures.is_file():
        _take_failures(paths, wanted, tally, earlier)
    return earlier


def _take_rollouts(paths: ResultPaths, wanted: Container[Key], tally: RunTally, earlier: Earlier) -> None:
    twice = 0
    for line in read_lines(paths.rollouts):
        key = _key_of(line.record, paths.rollouts, wanted)
        if key in earlier.scored:
            twice += 1
            continue
        earlier.scored.add(key)
        earlier.rollouts.append((key, line.place, line.length))
        tally.add_result(line.record)
    if twice:
        earlier.notices.append(f"{paths.rollouts}: {twice} rollouts stood there twice; the first of each counts.")


def _take_failures(paths: ResultPaths, wanted: Container[Key], tally: RunTally, earlier: Earlier) -> None:
    for line in read_lines(paths.failures):
        record = line.record
        key = _key_of(record, paths.failures, wanted)
        number = record.get(ATTEMPT_INDEX)
        if not isinstance(number, int):
            raise ConfigError(f"{paths.failures}: a failure of task {key[0]} has no {ATTEMPT_INDEX}.")
        earlier.failures.append(((*key, number), line.place, line.length))
        tally.retries += 1
        before = earlier.tried.get(key, Tried())
        # after a final failure the rollout may be tried as often as at first
        counted = 0 if record.get("final") else before.counted + 1
        earlier.tried[key] = Tried(max(before.next_number, number + 1), counted)


def _key_of(record: Mapping[str, Any], path: Any, wanted: Container[Key]) -> Key:
    try:
        key = row_key(record)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: a line says of no task and repeat ({error}): it is not of this run.") from error
    if key not in wanted:
        raise ConfigError(
            f"{path} holds task index {key[0]}, repeat {key[1]}, which this run does not have. Give the --limit, "
            "--task-ids and --shard that the run was started with, or another --output."
        )
    return key
