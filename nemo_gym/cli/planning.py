"""Preparing and planning for a command, with the record that stops a chain of jobs from failing again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

    selection = checked_selection(task_ids)
    plain = plain_config(config)
    with (
        stdout_kept_for_data(),
        stop_recorded(plain, [get_benchmark(plain)]),
        open_benchmark(config) as prepared,
    ):
        return collate_config(plain, task_ids=selection, keep_rows=keep_rows, prepared=prepared)


def config_as_yaml(config: Mapping[str, Any]) -> str:
    """A resolved config, secrets hidden, as YAML that reads back as the same config.

    The files it came from are named in comments: a file that pulls them in anew would not be what they gave.
    """
    from nemo_gym.config.redaction import redact_config
    from nemo_gym.config.resolve import dump_config

    shown = redact_config(config)
    paths = shown.pop("config_paths", [])
    return "".join(f"# from {path}\n" for path in paths) + dump_config(shown)
