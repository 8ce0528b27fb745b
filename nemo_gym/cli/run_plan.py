"""What ``gym eval run`` is asked to run: the options, and the rows that they come to."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_gym.cli.arguments import ConfigRequest
from nemo_gym.cli.planning import prepare_and_collate
from nemo_gym.config.task_ids import task_id_of_row
from nemo_gym.environment.collated_files import plan_of
from nemo_gym.errors import ConfigError
from nemo_gym.eval.eval_plan import EvalPlan
from nemo_gym.rollouts.provenance import RunRecord
from nemo_gym.rollouts.registry_client import RegistryAddress
from nemo_gym.rollouts.rows import TASK_INDEX, repeated_rows, row_key
from nemo_gym.rollouts.shards import Shard


@dataclass(frozen=True)
class RunOptions:
    """What is asked of a run, beside the configuration. ``registry``: servers that run already; None starts some.

    ``command`` is the command line, without the keys that it gives.
    """

    output: Path | None = None
    overwrite: bool = False
    resume: bool = False
    limit: int | None = None
    task_ids: Sequence[str] | None = None
    num_repeats: int | None = None
    shard: Shard | None = None
    concurrency: int = 32
    registry_port: int | None = None
    registry: RegistryAddress | None = None
    run_id: str | None = None
    command: Sequence[str] = ()
    as_json: bool = False
    verbose: bool = False

    def rollouts_path(self, benchmark: str | None) -> Path:
        """Where the results go. A shard's have its number in the name, so that one command line does for all."""
        if self.output is None and self.resume:
            raise ConfigError("--resume goes on with the results of an earlier run: say where they are with --output.")
        output = self.output or _default_output(benchmark)
        return output if self.shard is None else self.shard.output_path(output)


@dataclass(frozen=True)
class PlannedRun:
    """The rows to run, in order, repeats of a task together; the plan of the whole run, of all its shards."""

    rows: list[dict[str, Any]]
    plan: EvalPlan
    num_repeats: int
    names: Mapping[int, str]

    def name_task(self, row: Mapping[str, Any]) -> str:
        """The task id of a row, or of a result, which need not hold more of its row than its place."""
        return self.names[row_key(row)[0]]


def plan_run(request: ConfigRequest, options: RunOptions, before: RunRecord | None) -> PlannedRun:
    """Prepare and plan what is to be run. ``before`` is the run that is resumed: its repeats stay."""
    config = request.load_for_planning()
    collated = prepare_and_collate(config, options.task_ids, keep_rows=True)
    first_rows: dict[str, dict[str, Any]] = {}
    for row in collated.rows:
        first_rows.setdefault(_task_id(row), row)
    names = list(first_rows)[: options.limit]
    if len(names) < len(first_rows):
        kept = set(names)
        tasks = [task for task in collated.tasks if task.task_id.task_id in kept]
        collated = replace(collated, tasks=tasks, selected_task_ids=sorted(kept))
    plan = plan_of(config, collated)
    chosen = names if options.shard is None else options.shard.of(names)
    in_shard = set(chosen)
    rows = [row for row in collated.rows if _task_id(row) in in_shard]
    repeats = _repeats(rows, options, before)
    if repeats is not None:
        rows = repeated_rows((first_rows[name] for name in chosen), repeats)
    return PlannedRun(rows, plan, _most_repeats(rows), {row[TASK_INDEX]: _task_id(row) for row in rows})


def _repeats(rows: Sequence[Mapping[str, Any]], options: RunOptions, before: RunRecord | None) -> int | None:
    """Rollouts of each task where that is not what the benchmark says; ``ConfigError`` for fewer than there are."""
    if before is None:
        return options.num_repeats
    if options.num_repeats is None:
        return before.num_repeats if before.num_repeats != _most_repeats(rows) else None
    if options.num_repeats < before.num_repeats:
        raise ConfigError(
            f"This run has {before.num_repeats} repeats of each task, and --num-repeats {options.num_repeats} asks for "
            f"fewer. A run can be given more, and no result is thrown away: resume with --num-repeats "
            f"{before.num_repeats} or more, or leave the option out; for fewer repeats choose another --output."
        )
    return options.num_repeats


def _most_repeats(rows: Sequence[Mapping[str, Any]]) -> int:
    return max(Counter(_task_id(row) for row in rows).values(), default=0)


def _task_id(row: Mapping[str, Any]) -> str:
    return task_id_of_row(row, row[TASK_INDEX])


def _default_output(benchmark: str | None) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", benchmark or "run")
    return Path("results", f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.jsonl")
