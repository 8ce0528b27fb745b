"""Run a benchmark from Python: plan it in one call, serve it, and run single tasks against the running servers.

::

    planned = plan_benchmark("truthfulqa_mc1")
    with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server:
        runner = TaskRunner(planned.rows, registry_server=registry_server)
        result = await runner.run_task(planned.plan.tasks[0].task_id.task_id)
        result.rewards

Planning reads no command line, starts no server and leaves this process as it was: the configuration, the
environment variables and whatever else a prepare script changes, it changes in a process of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.environment.task_runner import (
    TaskResult,
    TaskRunner,
    _first_row_of_each_task,
    _with_rollout_id,
)
from nemo_gym.eval.eval_plan import EvalPlan
from nemo_gym.eval.planned_json import parse_planned, planned_json

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.config.config_types import BaseServerConfig

__all__ = [
    "PlannedBenchmark",
    "TaskResult",
    "TaskRunner",
    "_benchmark_config",
    "_checked_overrides",
    "_collated_rows",
    "_first_row_of_each_task",
    "_refuse_dotted_keys",
    "_with_rollout_id",
    "plan_benchmark",
    "serve_benchmark",
]

# ---------------------------------------------------------------------------------------------------- planning


@dataclass
class PlannedBenchmark:
    """A prepared benchmark: its plan (task ids and input digests) and the collated rows to run."""

    plan: EvalPlan
    rows: list[dict[str, Any]]

    @property
    def gym_commit(self) -> str | None:
        """The commit of the checkout the plan was made with, or None when it was not made from one."""
        return self.plan.gym.commit

    def task_ids(self) -> list[str]:
        """Each planned task's id, in the plan's order."""
        return [task.task_id.task_id for task in self.plan.tasks]

    def task_digests(self) -> dict[str, str]:
        """Each planned task's id mapped to the digest of its input.

        A digest changes when, and only when, what a run of that task receives changes.
        """
        return {task.task_id.task_id: task.input_digest for task in self.plan.tasks}

    def to_json(self) -> str:
        """The planned benchmark as JSON text, one row a line, for handing it to another process."""
        return planned_json(self.plan, self.rows)

    @classmethod
    def from_json(cls, text: str) -> PlannedBenchmark:
        """What ``to_json`` wrote; a ``ConfigError`` says what is wrong with any other text."""
        return cls(*parse_planned(text))


def plan_benchmark(
    benchmark: str,
    task_ids: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    work_dir: Path | None = None,
) -> PlannedBenchmark:
    """Resolve the benchmark ``NAME[/FLAVOR]``, prepare its data, build its plan and collate its rows.

    ``task_ids`` selects tasks (None: all of them). ``overrides`` are config keys merged on top, as a nested dict
    like the config file's; a dotted key is refused. The prepare script sees them as its Gym configuration.
    ``work_dir`` receives the collated files; without it nothing is written, and the rows are in what is returned only.

    Raises ``ConfigError`` for what the caller can correct, and ``PreparationFailedError`` when the benchmark's own
    prepare script fails.
    """
    from nemo_gym.config.discovery import find_benchmark_config
    from nemo_gym.config.sources import search_roots
    from nemo_gym.environment.benchmark_preparation import open_benchmark
    from nemo_gym.environment.collated_files import checked_selection, collate_config, plain_config, plan_of

    selection = checked_selection(task_ids)
    config = _benchmark_config(str(find_benchmark_config(benchmark, search_roots())), overrides)
    plain = plain_config(config)
    output_dir = None if work_dir is None else Path(work_dir)
    with open_benchmark(config) as prepared:
        collated = collate_config(plain, task_ids=selection, output_dir=output_dir, keep_rows=True, prepared=prepared)
    return PlannedBenchmark(plan=plan_of(plain, collated), rows=collated.rows)


def _benchmark_config(config_path: str, overrides: Mapping[str, Any] | None) -> DictConfig:
    """The resolved config for one benchmark, built without reading ``sys.argv`` or keeping it process-wide."""
    from nemo_gym.config.resolve import load_config

    return load_config([config_path], _checked_overrides(overrides), serving=False)


def _checked_overrides(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """The overrides as plain nested dicts; a dotted key is refused at any depth.

    Merged as a dict, ``"judge.model"`` would be one key with a dot in its name, while on the command line
    ``++judge.model=x`` sets ``model`` inside ``judge``: refusing it keeps the two from disagreeing.
    """
    from nemo_gym.config.overrides import checked_overrides

    return checked_overrides(overrides)


def _refuse_dotted_keys(node: Any) -> None:
    """A ``ConfigError`` when a key anywhere in ``node`` has a dot in it; it names the path to the key."""
    _checked_overrides(node if isinstance(node, Mapping) else {"overrides": node})


def _collated_rows(global_config_dict: DictConfig, output_dir: Path) -> list[dict[str, Any]]:
    """The collated rows of a resolved config whose data is prepared; also written to ``output_dir``."""
    from nemo_gym.environment.collated_files import collate_config

    return collate_config(global_config_dict, output_dir=output_dir, keep_rows=True).rows


# ------------------------------------------------------------------------------------------------------ serving


@contextlib.contextmanager
def serve_benchmark(
    benchmark: str,
    model_type: str = "openai_model",
    overrides: Mapping[str, Any] | None = None,
    registry_port: int | None = None,
) -> Iterator[BaseServerConfig]:
    """Start the benchmark's servers, and stop them on exit. Yields the registry server a ``TaskRunner`` talks to.

    The benchmark ``NAME[/FLAVOR]`` and the model type are named as in ``gym env start --benchmark NAME --model-type
    TYPE``; ``overrides`` are those of ``plan_benchmark``, the model's ``policy_base_url``, ``policy_api_key`` and
    ``policy_model_name`` among them. ``registry_port`` fixes the registry's port, so that another process can know the
    address before the servers start; without it the engine assigns one.

    Returns once every server and the model endpoint answer. Raises ``ConfigError`` when one does not, when a name,
    key or port cannot be used, and when no container engine answers. Sets this process's Gym configuration meanwhile,
    so one process serves one benchmark at a time.
    """
    from nemo_gym.environment.serving import serve, serving_config_paths

    paths = serving_config_paths(benchmark, model_type)
    with serve(paths, _checked_overrides(overrides), registry_port=registry_port) as session:
        yield session.registry_server
