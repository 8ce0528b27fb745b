"""The names, signatures, defaults and fields that callers outside this package rely on, as literals.

A change here is a change of the public API: parameters and fields may be added, with defaults, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nemo_gym.config
import nemo_gym.environment
from nemo_gym.config.config_types import BaseNeMoGymCLIConfig, BaseServerConfig
from nemo_gym.environment import benchmark_preparation, in_process
from nemo_gym.environment.benchmark_preparation import PreparationFailedError, PrepareBenchmarkConfig
from nemo_gym.environment.benchmarks import BenchmarkConfig
from nemo_gym.environment.in_process import PlannedBenchmark, TaskResult, TaskRunner
from nemo_gym.eval.eval_plan import EvalPlan
from nemo_gym.rollouts.collection import RolloutCollectionHelper

EMPTY = inspect.Parameter.empty


def parameters(call: Callable[..., Any]) -> str:
    """The parameters without their annotations: ``benchmark, task_ids=None``."""
    shown = []
    for parameter in inspect.signature(call).parameters.values():
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = "" if parameter.default is EMPTY else f"={parameter.default!r}"
        shown.append(parameter.name + default)
    return ", ".join(shown)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plan_benchmark", "benchmark, task_ids=None, overrides=None, work_dir=None"),
        ("serve_benchmark", "benchmark, model_type='openai_model', overrides=None, registry_port=None"),
        ("_benchmark_config", "config_path, overrides"),
        ("_checked_overrides", "overrides"),
        ("_collated_rows", "global_config_dict, output_dir"),
        ("_first_row_of_each_task", "rows"),
        ("_refuse_dotted_keys", "node"),
        ("_with_rollout_id", "row, rollout_id, index, num_repeats"),
        ("PlannedBenchmark", "plan, rows"),
        ("TaskResult", "task_id, rewards, results"),
        ("TaskRunner", "rows, registry_server"),
    ],
)
def test_in_process(name: str, expected: str) -> None:
    assert parameters(getattr(in_process, name)) == expected
    assert inspect.getdoc(getattr(in_process, name))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (PlannedBenchmark.from_json, "text"),
        (PlannedBenchmark.to_json, "self"),
        (PlannedBenchmark.task_digests, "self"),
        (PlannedBenchmark.task_ids, "self"),
        (TaskRunner.rollout_records, "self, rollout_id"),
        (TaskRunner.run_task, "self, task_id, num_repeats=1, rollout_id=None"),
        (TaskRunner.task_ids, "self"),
    ],
)
def test_methods(method: Callable[..., Any], expected: str) -> None:
    assert parameters(method) == expected
    assert inspect.getdoc(method)


def test_annotations_of_the_two_calls() -> None:
    assert str(inspect.signature(in_process.plan_benchmark)) == (
        "(benchmark: 'str', task_ids: 'Sequence[str] | None' = None, overrides: 'Mapping[str, Any] | None' = None, "
        "work_dir: 'Path | None' = None) -> 'PlannedBenchmark'"
    )
    assert str(inspect.signature(in_process.serve_benchmark)) == (
        "(benchmark: 'str', model_type: 'str' = 'openai_model', overrides: 'Mapping[str, Any] | None' = None, "
        "registry_port: 'int | None' = None) -> 'Iterator[BaseServerConfig]'"
    )


def test_serving_is_a_context_manager_and_running_a_coroutine() -> None:
    serving = in_process.serve_benchmark("no-such-benchmark")
    assert isinstance(serving, contextlib.AbstractContextManager)
    assert inspect.iscoroutinefunction(TaskRunner.run_task)
    assert not inspect.iscoroutinefunction(TaskRunner.task_ids)


def test_fields_of_results() -> None:
    assert {field.name: field.type for field in dataclasses.fields(PlannedBenchmark)} == {
        "plan": "EvalPlan",
        "rows": "list[dict[str, Any]]",
    }
    assert {field.name: field.type for field in dataclasses.fields(TaskResult)} == {
        "task_id": "str",
        "rewards": "list[float]",
        "results": "list[dict[str, Any]]",
    }
    assert isinstance(inspect.getattr_static(PlannedBenchmark, "gym_commit"), property)
    assert isinstance(inspect.getattr_static(PlannedBenchmark, "from_json"), classmethod)
    fields = [field.name for field in dataclasses.fields(BenchmarkConfig)]
    assert {"name", "path", "agent_name", "num_repeats", "dataset"} <= set(fields)


def test_attributes_of_a_runner() -> None:
    agent = {"type": "responses_api_agents", "name": "agent"}
    rows = [{"task_id": "a", "responses_create_params": {"input": "x"}, "agent_ref": agent}]
    runner = TaskRunner(rows, registry_server=BaseServerConfig(host="127.0.0.1", port=1))
    assert isinstance(runner._helper, RolloutCollectionHelper)
    assert runner._row_of_task == in_process._first_row_of_each_task(rows) == {"a": rows[0]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_install_prepare_dependencies", "benchmark_config"),
        ("_multiprocess_benchmark_prepare_fn", "args"),
        ("_prepare_environment", "benchmark_config, venv_root=None"),
        ("_prepare_json_default", "value"),
        ("_run_isolated_prepare", "python, module, action, expected, args, config=None"),
        ("datasets_to_prepare", "global_config_dict"),
        ("gym_relative_path", "path"),
        ("plan_for_config", "global_config_dict, prepare_config, task_ids=None"),
        ("prepare_datasets", "datasets, prepare_benchmark_config"),
        ("PreparationFailedError", "module, action, reason"),
    ],
)
def test_benchmark_preparation(name: str, expected: str) -> None:
    assert parameters(getattr(benchmark_preparation, name)) == expected
    assert inspect.getdoc(getattr(benchmark_preparation, name))


def test_the_preparation_config() -> None:
    assert issubclass(PrepareBenchmarkConfig, BaseNeMoGymCLIConfig)
    fields = {name: field.annotation for name, field in PrepareBenchmarkConfig.model_fields.items()}
    assert fields["num_prepare_benchmark_processes"] is int
    assert fields["prepare_script_args"] == dict[str, Any]
    assert fields["use_cached_prepared_benchmarks"] is bool
    assert fields["uv_venv_dir"] is Path
    config = PrepareBenchmarkConfig()
    assert (config.num_prepare_benchmark_processes, config.prepare_script_args) == (1, {})
    assert config.use_cached_prepared_benchmarks is False
    assert config.uv_venv_dir.name == "venvs"


def test_the_preparation_failure() -> None:
    assert PreparationFailedError.__bases__ == (RuntimeError,)
    assert PreparationFailedError.stop_exit_code == 76
    error = PreparationFailedError("m", "a", "r")
    assert error._init_args == ("m", "a", "r")
    assert error.__reduce__() == (PreparationFailedError, ("m", "a", "r"))


def test_the_logger() -> None:
    assert benchmark_preparation.logger is logging.getLogger("nemo_gym.environment.benchmark_preparation")


def test_what_the_packages_export() -> None:
    assert sorted(nemo_gym.environment.__all__) == [
        "EvalPlan",
        "PlannedBenchmark",
        "TaskResult",
        "TaskRunner",
        "plan_benchmark",
        "serve_benchmark",
    ]
    assert nemo_gym.config.__all__ == ["ConfigError"]
    assert nemo_gym.environment.EvalPlan is EvalPlan
    assert str(inspect.signature(BaseServerConfig)).startswith(
        "(*, host: str, port: int, num_workers: int | None = None"
    )
