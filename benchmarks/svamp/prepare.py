"""Writes the rows of svamp: a word problem, its answer as a number, and the equation that gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import download
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

URL = "https://raw.githubusercontent.com/QwenLM/Qwen2.5-Math/main/evaluation/data/svamp/test.jsonl"
SHA256 = "d0826ff1264f3860e46fc4e71db9e31d2d188960db87090e22677f9493e67a0d"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``."""
    source = download(URL, sha256=SHA256, filename="svamp_test.jsonl")
    return write_rows(output_path, map(row_of, read_json_lines(source.read_bytes())))


def row_of(case: dict[str, Any]) -> dict[str, Any]:
    """The row of one case. The source keeps the story and what is asked apart, and writes numbers as ``145.0``."""
    story, answer = case["Body"].strip(), case["Answer"]
    if answer != int(answer):
        raise ValueError(f"the answer of {case['ID']} is {answer}, and not a whole number")
    return {
        "task_id": case["ID"],
        "question": f"{story if story[-1] in '.?!' else story + '.'} {case['Question'].strip()}",
        "expected_answer": str(int(answer)),
        "solution": case["Equation"],
        "kind": case["Type"],
    }
