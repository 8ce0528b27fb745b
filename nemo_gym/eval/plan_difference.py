"""Whether two plans ask for the same tasks. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

import orjson

from nemo_gym.eval.eval_plan import EvalPlan

_SHOWN: Final = 3


def plan_digest(plan: EvalPlan) -> str:
    """The sha256, in hex, of the plan's tasks: one line ``["<task id>","<input digest>"]`` each, in the plan's order.

    Where the plan was made, from which files and with which commit, is not part of it: the same tasks have the same
    digest on every machine.
    """
    digest = hashlib.sha256()
    for task in plan.tasks:
        digest.update(orjson.dumps([task.task_id.task_id, task.input_digest]) + b"\n")
    return digest.hexdigest()


def describe_difference(before: EvalPlan, now: EvalPlan) -> str:
    """What differs, as the end of a sentence; empty when the tasks are the same."""
    old = {task.task_id.task_id: task.input_digest for task in before.tasks}
    new = {task.task_id.task_id: task.input_digest for task in now.tasks}
    changed = [task for task in old if task in new and old[task] != new[task]]
    parts = [
        _some(changed, "get another input", "gets another input"),
        _some([task for task in old if task not in new], "are missing", "is missing"),
        _some([task for task in new if task not in old], "are new", "is new"),
    ]
    return ", ".join(part for part in parts if part)


def _some(tasks: list[str], plural: str, singular: str) -> str:
    if not tasks:
        return ""
    shown = ", ".join(map(repr, tasks[:_SHOWN])) + (", ..." if len(tasks) > _SHOWN else "")
    return f"{len(tasks)} task{'s' * (len(tasks) > 1)} {plural if len(tasks) > 1 else singular} ({shown})"
