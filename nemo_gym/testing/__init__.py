"""For tests that need a served benchmark: containers as context managers, a scripted model, and a pytest plugin.

::

    with (
        ModelEndpointContainer(Script.answering("Answer: B")) as endpoint,
        BenchmarkContainers("truthfulqa_mc1").with_overrides(endpoint.overrides()) as served,
    ):
        result = asyncio.run(served.task_runner().run_task(served.planned.task_ids()[0]))

Needs the extra: ``pip install 'nemo-gym[testing]'``. The names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nemo_gym.servers.scripted import Asked, Reply, Rule, Script, ToolCall
    from nemo_gym.testing.benchmark_containers import BenchmarkContainers, ServedBenchmark
    from nemo_gym.testing.model_endpoint import ModelEndpointContainer
    from nemo_gym.testing.sharing import SharedBenchmarks

__all__ = [
    "Asked",
    "BenchmarkContainers",
    "ModelEndpointContainer",
    "Reply",
    "Rule",
    "Script",
    "ServedBenchmark",
    "SharedBenchmarks",
    "ToolCall",
]

_MODULES: Final = {
    "BenchmarkContainers": "nemo_gym.testing.benchmark_containers",
    "ModelEndpointContainer": "nemo_gym.testing.model_endpoint",
    "ServedBenchmark": "nemo_gym.testing.benchmark_containers",
    "SharedBenchmarks": "nemo_gym.testing.sharing",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_MODULES.get(name, "nemo_gym.servers.scripted"))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "testcontainers":
            raise
        raise ImportError(f"{name} needs testcontainers. Type: pip install 'nemo-gym[testing]'") from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
