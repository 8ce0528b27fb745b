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
    from nemo_gym.environment import in_process

    # Kept, so that the next use does not come here; in_process has EvalPlan as well.
    value = globals()[name] = getattr(in_process, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
