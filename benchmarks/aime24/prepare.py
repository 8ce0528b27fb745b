"""Writes the rows of aime24: a competition problem and its answer, a whole number from 0 to 999."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import download
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

URL = "https://raw.githubusercontent.com/QwenLM/Qwen2.5-Math/main/evaluation/data/aime24/test.jsonl"
SHA256 = "af2b8bd2aa911b6333ad0df32f3ca05c7ae8ed10f1731f4372c8ae26990bf7ac"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``."""
    source = download(URL, sha256=SHA256, filename="aime24_test.jsonl")
    return write_rows(output_path, map(row_of, read_json_lines(source.read_bytes())))


def row_of(case: dict[str, Any]) -> dict[str, Any]:
    """The row of one case. Its solutions stay in the source: they are many, and nothing needs them."""
    return {
        "task_id": f"aime24-{case['id']}",
        "question": case["problem"],
        # Written with leading zeros, as the competition has it.
        "expected_answer": str(int(case["answer"])),
        "url": case["url"],
    }
