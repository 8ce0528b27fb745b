"""Shards: the tasks of one run dealt out to several machines. Pure.

Written ``i/n`` and counted from 1, as Jest, Playwright and Vitest do. The tasks are dealt out one by one in the order
of the rows: task 1 to shard 1, task 2 to shard 2, and so on. So shards differ by one task at most, all repeats of a
task are in one shard, and every machine that plans the same tasks deals them out in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from nemo_gym.errors import ConfigError

T = TypeVar("T")
_WRITTEN: Final = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``index`` (from 1) of ``count``."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, tasks: Sequence[T]) -> list[T]:
        """Its part of the tasks; ``ConfigError`` when nothing would be left for it."""
        if self.index > len(tasks):
            raise ConfigError(
                f"--shard {self}: {len(tasks)} tasks make {len(tasks)} shards at most, and this one would be empty."
            )
        return list(tasks[self.index - 1 :: self.count])

    def output_path(self, output: Path) -> Path:
        """``x-2-of-4.jsonl`` for ``x.jsonl``; numbers have the same width, so that the files sort as the shards do."""
        suffix = f"-{self.index:0{len(str(self.count))}}-of-{self.count}"
        return output if output.stem.endswith(suffix) else output.with_name(f"{output.stem}{suffix}{output.suffix}")


def parse_shard(text: str) -> Shard:
    """The shard of ``2/4``; ``ValueError`` says what was needed."""
    match = _WRITTEN.fullmatch(text.strip())
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count:
        raise ValueError(f"must be i/n with i from 1 to n, as in 2/4; found {text!r}")
    return Shard(index, count)
