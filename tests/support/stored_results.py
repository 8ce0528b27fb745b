"""Result files made on the fly, as a run or a foreign tool would have left them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

AGENT_REF = {"type": "responses_api_agents", "name": "demo_agent"}


def row(task: int, repeat: int = 0, /, **more: Any) -> dict[str, Any]:
    """The row of a rollout, as the file of inputs has it."""
    return {
        "task_id": f"t{task}",
        "responses_create_params": {"input": f"Question {task}?"},
        "agent_ref": AGENT_REF,
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        **more,
    }


def result(task: int, repeat: int, reward: float, /, **more: Any) -> dict[str, Any]:
    """A result: the row, the response, the reward, and what the run adds."""
    usage = {"input_tokens": 10 + task, "output_tokens": 5 + repeat}
    added = {"response": {"output": [], "usage": usage}, "reward": reward, "_ng_elapsed_s": 1.0 + task}
    return {**row(task, repeat), **added, **more}


def failure(task: int, repeat: int = 0, /, **more: Any) -> dict[str, Any]:
    """A failed attempt."""
    of_row = {key: value for key, value in row(task, repeat).items() if key.startswith(("agent_ref", "_ng_"))}
    said = {"failure_class": "http_error", "server": "demo_agent", "reason": "answered HTTP 500.", "final": True}
    return {**of_row, "_ng_attempt_index": 0, **said, **more}


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write a file of one JSON object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_results(
    path: Path,
    results: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]] = (),
    inputs: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Write a rollouts file, and the files beside it; without ``inputs`` there is no file of them."""
    write_lines(path, results)
    write_lines(path.with_name(f"{path.stem}_failures.jsonl"), failures)
    if inputs is not None:
        write_lines(path.with_name(f"{path.stem}_materialized_inputs.jsonl"), inputs)
    return path
