"""The files of several runs put together into those of one, line by line as they stand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.journal import whole_file
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.rows import ATTEMPT_INDEX
from nemo_gym.rollouts.stored import StoredLine, checked_key, has_reward, iter_objects

Key = tuple[int, ...]


@dataclass
class Merged:
    """What came together. ``keys`` are the rollouts (task and repeat) that have a result."""

    keys: set[Key] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)


def merge_results(sources: Sequence[ResultPaths], output: ResultPaths) -> Merged:
    """Write the rollouts, failures, inputs and records of all ``sources`` to ``output``, in the order of one run.

    What stands there is removed.
    ``ConfigError`` when two of them hold the same rollout: they are no shards of one run.
    """
    merged = Merged()
    rollouts = _Index([source.rollouts for source in sources], _rollout_key, merged.notices, counts=has_reward)
    inputs = _Index([source.materialized_inputs for source in sources], _rollout_key, merged.notices)
    failures = _Index([source.failures for source in sources], _attempt_key, merged.notices, may_repeat=True)
    records = _Index([source.records for source in sources], _no_key, merged.notices, may_repeat=True)
    for index in (rollouts, inputs):
        index.refuse_overlap()
    merged.keys = rollouts.keys()
    # once everything has been read: whatever is wrong is told before a file is written or replaced
    output.clear()
    rollouts.write(output.rollouts)
    failures.write(output.failures)
    if inputs.is_complete:
        inputs.write(output.materialized_inputs)
    else:
        merged.notices.append("Not every run has kept its inputs: they are left out.")
    if records.is_there:
        records.write(output.records)
    return merged


class _Index:
    """Where each line of some files stands, in the order of their keys.

    Of lines with the same key in a file the first counts, unless they ``may_repeat``; one that does not count itself,
    such as a result without a reward, stays beside one that does.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        key_of: Callable[[StoredLine, Path], Key],
        notices: list[str],
        *,
        may_repeat: bool = False,
        counts: Callable[[dict[str, Any]], bool] = bool,
    ) -> None:
        self._paths = [path for path in paths if path.is_file()]
        self.is_there = bool(self._paths)
        self.is_complete = len(self._paths) == len(paths)
        self._lines: list[tuple[Key, int, int, int]] = []
        for number, path in enumerate(self._paths):
            seen: set[Key] = set()
            twice = 0
            for line in iter_objects(path, notices):
                key = key_of(line, path)
                if not may_repeat and counts(line.record):
                    if key in seen:
                        twice += 1
                        continue
                    seen.add(key)
                self._lines.append((key, number, line.place, line.length))
            if twice:
                notices.append(f"{path}: {twice} rollouts stand there twice; the first of each counts.")
        self._lines.sort()

    def keys(self) -> set[Key]:
        return {line[0] for line in self._lines}

    def refuse_overlap(self) -> None:
        shared = [(one, other) for one, other in pairwise(self._lines) if one[0] == other[0] and one[1] != other[1]]
        if shared:
            (key, first, *_), (_, second, *_) = shared[0]
            more = f", and {len(shared) - 1} more of the same" if len(shared) > 1 else ""
            raise ConfigError(
                f"{self._paths[first]} and {self._paths[second]} both hold the rollout of task index {key[0]}, repeat "
                f"{key[1]}{more}: they are no shards of one run. Give each shard once."
            )

    def write(self, output: Path) -> None:
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(path.open("rb")) for path in self._paths]
            written = stack.enter_context(whole_file(output))
            for _, number, place, length in self._lines:
                streams[number].seek(place)
                line = streams[number].read(length)
                written.write(line if line.endswith(b"\n") else line + b"\n")


def _rollout_key(line: StoredLine, path: Path) -> Key:
    return checked_key(line, path)


def _no_key(line: StoredLine, path: Path) -> Key:
    """Lines stay in the order that they stand in."""
    return ()


def _attempt_key(line: StoredLine, path: Path) -> Key:
    attempt = line.record.get(ATTEMPT_INDEX)
    return (*checked_key(line, path), attempt if isinstance(attempt, int) else 0)
