"""``gym eval``: a benchmark prepared, planned or run."""

from __future__ import annotations

import argparse
from pathlib import Path

from nemo_gym.cli import eval_results, eval_show, eval_verify
from nemo_gym.cli.arguments import (
    Command,
    ConfigRequest,
    add_config_options,
    add_sampling_options,
    read_selection,
)
from nemo_gym.cli.output import (
    configure_logging,
    emit,
    emit_exactly,
    emit_json,
    note,
    stdout_kept_for_data,
    write_whole,
)
from nemo_gym.cli.planning import prepare_and_collate
from nemo_gym.cli.run_arguments import TASK_IDS_HELP, add_run_arguments, read_run_options
from nemo_gym.errors import ConfigError


def _prepare(arguments: argparse.Namespace) -> int:
    from nemo_gym.config.process_config import process_config
    from nemo_gym.environment.benchmark_preparation import (
        datasets_to_prepare,
        parse_prepare_config,
        prepare_datasets,
    )
    from nemo_gym.environment.collated_files import plain_config
    from nemo_gym.environment.preparation_failure import stop_recorded

    configure_logging(arguments.verbose)
    config = ConfigRequest.from_arguments(arguments).load_for_planning()
    datasets = datasets_to_prepare(config)
    if not datasets:
        raise ConfigError("The configuration has no data set to prepare: none of type benchmark or with a script.")
    with stdout_kept_for_data(), process_config(config), stop_recorded(plain_config(config), datasets):
        prepare_datasets(datasets, parse_prepare_config(config))
    prepared = [{"name": dataset.name, "path": str(dataset.data_file)} for dataset in datasets]
    if arguments.json:
        emit_json(prepared)
    else:
        emit("\n".join(f"{entry['name']}: {entry['path']}" for entry in prepared))
    return 0


def _add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument("--output", type=Path, metavar="PATH", help="write the plan here instead of to stdout")
    parser.add_argument("--task-ids", metavar="IDS", help=TASK_IDS_HELP)
    add_sampling_options(parser)


def _plan(arguments: argparse.Namespace) -> int:
    from nemo_gym.environment.collated_files import plan_of

    configure_logging(arguments.verbose)
    selection = read_selection(arguments.task_ids)
    config = ConfigRequest.from_arguments(arguments).load_for_planning()
    text = plan_of(config, prepare_and_collate(config, selection, keep_rows=False)).to_json()
    if arguments.output is None:
        emit_exactly(text)
    else:
        write_whole(arguments.output, text)
        note(f"The plan is in {arguments.output}.")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from nemo_gym.cli.eval_run import run_benchmark

    configure_logging(arguments.verbose)
    return run_benchmark(*read_run_options(arguments))


COMMANDS = [
    Command(
        "run",
        "serve a benchmark, run every task and show the rewards",
        add_run_arguments,
        _run,
        description=(
            "Serve a benchmark, run every task, and show the rewards. Results are appended to PATH.jsonl as they "
            "arrive;\nbeside it stand PATH_failures.jsonl, PATH_materialized_inputs.jsonl, "
            "PATH_aggregate_metrics.json,\nPATH_plan.json, PATH_config.yaml, PATH_images.lock.json and PATH_run.json, "
            "which say where they come from.\nWhatever ends a run, --resume goes on with it. Ctrl-C once lets the "
            "rollouts under way finish, twice stops.\nExits with 1 when a rollout failed for good."
        ),
    ),
    Command("plan", "print a benchmark's tasks and the digests of their inputs", _add_plan_arguments, _plan),
    Command("prepare", "fetch and prepare a benchmark's data", add_config_options, _prepare),
    *eval_results.COMMANDS,
    *eval_show.COMMANDS,
    *eval_verify.COMMANDS,
]
