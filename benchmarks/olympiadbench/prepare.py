"""Writes the rows of olympiadbench: a problem of an olympiad, its answer, and how that is to be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import download
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

URL = "https://raw.githubusercontent.com/QwenLM/Qwen2.5-Math/main/evaluation/data/olympiadbench/test.jsonl"
UNIT_NAMES = {"^{\\circ}": "degrees", "%": "percent"}
SHA256 = "bb8c1e38a16ea9eacb77530315a674d883f267fbff79183effc53681b4fcc416"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``."""
    source = download(URL, sha256=SHA256, filename="olympiadbench_test.jsonl")
    return write_rows(output_path, map(row_of, read_json_lines(source.read_bytes())))


def row_of(case: dict[str, Any]) -> dict[str, Any]:
    """The row of one case. Of the source's texts it leaves out the solutions, which are long proofs."""
    (answer,) = case["final_answer"]
    return {
        "task_id": f"olympiadbench-{case['id']}",
        "question": f"{case['context']}\n\n{case['question']}" if case["context"] else case["question"],
        "expected_answer": answer,
        "is_multiple_answer": case["is_multiple_answer"],
        "unit": case["unit"],
        "tolerance": float(case["error"]) if case["error"] else None,
        "answer_type": case["answer_type"],
        "subfield": case["subfield"],
        "expects": expectation(case),
    }


def expectation(case: dict[str, Any]) -> str:
    """What the prompt says about the form of the answer."""
    if case["is_multiple_answer"]:
        return "If there are several answers, put them into the same box, separated by commas."
    unit = case["unit"]
    return f"Give it in {UNIT_NAMES.get(unit, unit.strip('$'))}." if unit else "Put it there without further words."
