"""Preparing and planning for a command, with the record that stops a chain of jobs from failing again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nemo_gym.cli.output import note

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.environment.collated_files import Collated


@contextlib.contextmanager
def failure_recorded(config: DictConfig) -> Iterator[None]:
    """Record a failed preparation of the config's benchmark, and stop at once where one is on record."""
    from nemo_gym.environment.benchmarks import get_benchmark
    from nemo_gym.environment.collated_files import plain_config
    from nemo_gym.environment.preparation_failure import (
        PreparationFailedError,
        check_stop_record,
        clear_stop_record,
        write_stop_record,
    )

    plain = plain_config(config)
    benchmark = get_benchmark(plain)
    check_stop_record(plain, benchmark)
    try:
        yield
    except PreparationFailedError as error:
        record = write_stop_record(error, plain, benchmark)
        if record is not None:
            note(f"gym: recorded in {record}; a further job stops there at once. Delete it to try again.")
        raise
    clear_stop_record(plain, benchmark)


def prepare_and_collate(config: DictConfig, task_ids: Sequence[str] | None, *, keep_rows: bool) -> Collated:
    """Prepare the config's benchmark, and collate the tasks that are asked for."""
    from nemo_gym.environment.benchmark_preparation import open_benchmark
    from nemo_gym.environment.collated_files import collate_config

    with failure_recorded(config), open_benchmark(config) as prepared:
        return collate_config(config, task_ids=task_ids, keep_rows=keep_rows, prepared=prepared)
