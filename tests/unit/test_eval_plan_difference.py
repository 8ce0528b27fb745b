from __future__ import annotations

import hashlib

from nemo_gym.eval.eval_plan import EvalPlan, GymVersion, PlannedFrom, PlannedTask, TaskId, build_plan
from nemo_gym.eval.plan_difference import describe_difference, plan_digest


def plan(commit: str | None = None, **digests: str) -> EvalPlan:
    tasks = [PlannedTask(TaskId("set", name), digit * 64) for name, digit in digests.items()]
    return build_plan(PlannedFrom("b", ("b.yaml",)), GymVersion(commit), tasks)


def test_the_digest_is_that_of_the_tasks_alone() -> None:
    line = b'["t1","' + b"a" * 64 + b'"]\n'
    assert plan_digest(plan(t1="a")) == hashlib.sha256(line).hexdigest()
    assert plan_digest(plan("c" * 40, t1="a")) == plan_digest(plan(t1="a"))
    assert plan_digest(plan(t1="b")) != plan_digest(plan(t1="a"))


def test_differences_in_words() -> None:
    before = plan(a="1", b="2", c="3")
    assert describe_difference(before, before) == ""
    assert describe_difference(before, plan(a="1", b="9", d="4")) == (
        "1 task gets another input ('b'), 1 task is missing ('c'), 1 task is new ('d')"
    )
    many = plan(**{f"n{n}": "5" for n in range(5)})
    assert describe_difference(plan(), many) == "5 tasks are new ('n0', 'n1', 'n2', ...)"
