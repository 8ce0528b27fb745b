"""Plan a benchmark, serve its servers as containers, and run single tasks, all from Python.

The names load on first use, so that importing this package is fast and changes nothing in the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_gym.environment.in_process import (
        PlannedBenchmark,
        TaskResult,
        TaskRunner,
        plan_benchmark,
        serve_benchmark,
    )
    from nemo_gym.eval.eval_plan import EvalPlan

__all__ = ["EvalPlan", "PlannedBenchmark", "TaskResult", "TaskRunner", "plan_benchmark", "serve_benchmark"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "EvalPlan":
        from nemo_gym.eval.eval_plan import EvalPlan as value
    else:
        from nemo_gym.environment import in_process

        value = getattr(in_process, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
