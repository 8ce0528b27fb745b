"""Writes the rows of gsm8k: a word problem, its answer as a number, and the worked solution it was taken from."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_gym.environment.downloads import download

URL = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl"
SHA256 = "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"
ANSWER_MARK = "####"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``, in the order of the source: a task's id is its position there."""
    source = download(URL, sha256=SHA256, filename="gsm8k_test.jsonl")
    with source.open(encoding="utf-8") as lines, output_path.open("w", encoding="utf-8") as output:
        for line in lines:
            output.write(json.dumps(row_of(json.loads(line)), ensure_ascii=False) + "\n")
    return output_path


def row_of(case: dict[str, str]) -> dict[str, str]:
    """The row of one case; the source gives the answer at the end of the solution, in part as ``1,450,000``."""
    solution, mark, answer = case["answer"].rpartition(ANSWER_MARK)
    if not mark:
        raise ValueError(f"no {ANSWER_MARK} in the answer to {case['question'][:60]!r}")
    return {
        "question": case["question"],
        "expected_answer": answer.strip().replace(",", ""),
        "solution": solution.strip(),
    }
