"""EvalPlan v1: its bytes, and what it refuses to read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.eval.eval_plan import EvalPlan, GymVersion, PlannedFrom, PlannedTask, TaskId, build_plan

A, B = "a" * 64, "b" * 64
TEXT = (
    '{\n"schema":"nemo-gym.eval-plan.v1",\n'
    '"benchmark":{"name":"demo","config_paths":["benchmarks/demo/config.yaml"]},\n'
    '"gym":{"commit":null,"version":"0.1.0"},\n'
    '"selected_task_ids":["10","9"],\n'
    '"tasks":[\n'
    f'{{"task_id":{{"taskset":"demo","task_id":"10"}},"input_digest":"{A}"}},\n'
    f'{{"task_id":{{"taskset":"demo","task_id":"9"}},"input_digest":"{B}"}}\n'
    "]\n}\n"
)


def plan() -> EvalPlan:
    return build_plan(
        benchmark=PlannedFrom("demo", ("benchmarks/demo/config.yaml",)),
        gym=GymVersion(commit=None, version="0.1.0"),
        tasks=[PlannedTask(TaskId("demo", "9"), B), PlannedTask(TaskId("demo", "10"), A)],
        selected_task_ids=["9", "10", "9"],
    )


def test_tasks_stand_once_sorted_by_id_as_text_whatever_order_they_came_in() -> None:
    assert plan().to_json() == TEXT
    assert plan().schema == "nemo-gym.eval-plan.v1"
    assert plan().tasks[0].task_id.task_id == "10"


def test_round_trip_is_exact_and_takes_any_layout() -> None:
    assert EvalPlan.from_json(TEXT) == plan()
    assert EvalPlan.from_json(TEXT).to_json() == TEXT
    assert EvalPlan.from_json(json.dumps(json.loads(TEXT), indent=4).encode()) == plan()


def test_all_tasks_is_null_and_a_plan_may_lack_the_version() -> None:
    everything = build_plan(PlannedFrom("demo", ()), GymVersion("c" * 40), [])
    data = json.loads(everything.to_json())
    assert data == {
        "schema": "nemo-gym.eval-plan.v1",
        "benchmark": {"name": "demo", "config_paths": []},
        "gym": {"commit": "c" * 40},
        "selected_task_ids": None,
        "tasks": [],
    }
    assert EvalPlan.from_json(everything.to_json()) == everything


def changed(change: dict[str, Any]) -> str:
    data = json.loads(TEXT)
    for path, value in change.items():
        node = data
        *parents, last = path.split("/")
        for step in parents:
            node = node[int(step) if isinstance(node, list) else step]
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "the plan has keys that .* does not know: extra"),
        ({"benchmark/extra": 1}, "benchmark has keys"),
        ({"gym/extra": 1}, "gym has keys"),
        ({"tasks/0/extra": 1}, r"tasks\[0\] has keys"),
        ({"tasks/1/task_id/extra": 1}, r"tasks\[1\].task_id has keys"),
        ({"tasks": ...}, "the plan lacks tasks"),
        ({"gym/commit": ...}, "gym lacks commit"),
        ({"schema": "nemo-gym.eval-plan.v2"}, "the schema must be 'nemo-gym.eval-plan.v1'"),
        ({"tasks": {}}, "tasks must be a list"),
        ({"tasks/0/input_digest": "abc"}, r"tasks\[0\].input_digest must be 64 hex digits"),
        ({"tasks/1/task_id/task_id": "10"}, "sorted by id, each id once"),
        ({"tasks/1/task_id/task_id": 9}, "must be a text; found int"),
        ({"selected_task_ids": "9"}, "selected_task_ids must be a list"),
        ({"benchmark/config_paths": [1]}, r"config_paths\[0\] must be a text"),
    ],
)
def test_anything_else_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalPlan.from_json(changed(change))


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "null"])
def test_what_is_no_plan_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"[Ee]val plan"):
        EvalPlan.from_json(text)
