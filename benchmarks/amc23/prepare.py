"""Writes the rows of amc23: a competition problem and its answer, a whole number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import download
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

URL = "https://raw.githubusercontent.com/QwenLM/Qwen2.5-Math/main/evaluation/data/amc23/test.jsonl"
SHA256 = "43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``."""
    source = download(URL, sha256=SHA256, filename="amc23_test.jsonl")
    return write_rows(output_path, map(row_of, read_json_lines(source.read_bytes())))


def row_of(case: dict[str, Any]) -> dict[str, Any]:
    """The row of one case. The source writes whole numbers as ``27.0``."""
    answer = case["answer"]
    if answer != int(answer):
        raise ValueError(f"the answer of {case['id']} is {answer}, and not a whole number")
    return {
        "task_id": f"amc23-{case['id']}",
        "question": case["problem"],
        "expected_answer": str(int(answer)),
        "url": case["url"],
    }
