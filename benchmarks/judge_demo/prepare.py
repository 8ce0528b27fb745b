"""Writes the rows of judge_demo from the questions beside this script."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

QUESTIONS = Path(__file__).with_name("questions.yaml")


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``, in the order of the questions."""
    output_path.write_text(rows_text(), encoding="utf-8")
    return output_path


def is_prepared_data_current(path: Path) -> bool:
    """Whether the rows at ``path`` are those of the questions as they are now."""
    return path.read_text(encoding="utf-8") == rows_text()


def rows_text() -> str:
    """One JSON row a line; a question's id is its task's."""
    questions = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    rows = ({"task_id": question.pop("id"), **question} for question in questions)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
