"""Preparing and planning for a command, with the record that stops a chain of jobs from failing again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_gym.cli.output import stdout_kept_for_data

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.environment.collated_files import Collated


def prepare_and_collate(config: DictConfig, task_ids: Sequence[str] | None, *, keep_rows: bool) -> Collated:
    """Prepare the config's benchmark, and collate the tasks that are asked for."""
    from nemo_gym.environment.benchmark_preparation import open_benchmark
    from nemo_gym.environment.benchmarks import get_benchmark
    from nemo_gym.environment.collated_files import checked_selection, collate_config, plain_config
    from nemo_gym.environment.preparation_failure import stop_recorded

    checked_selection(task_ids)
    plain = plain_config(config)
    with (
        stdout_kept_for_data(),
        stop_recorded(plain, [get_benchmark(plain)]),
        open_benchmark(config) as prepared,
    ):
        return collate_config(plain, task_ids=task_ids, keep_rows=keep_rows, prepared=prepared)
