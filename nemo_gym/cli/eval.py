"""``gym eval``: a benchmark prepared, planned or run."""

from __future__ import annotations

import argparse
from pathlib import Path

from nemo_gym.cli import eval_results, eval_show
from nemo_gym.cli.arguments import (
    Command,
    ConfigRequest,
    add_config_options,
    add_lock_option,
    add_model_options,
    positive_int,
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
from nemo_gym.errors import ConfigError

_TASK_IDS_HELP = "only these tasks: a,b,c, or @FILE with one id a line"


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
    parser.add_argument("--task-ids", metavar="IDS", help=_TASK_IDS_HELP)


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


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    add_model_options(parser)
    add_lock_option(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH.jsonl",
        help="where the results go; results/<benchmark>-<time>.jsonl",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace results that are there already")
    parser.add_argument("--limit", type=positive_int, metavar="N", help="only the first N tasks")
    parser.add_argument("--task-ids", metavar="IDS", help=_TASK_IDS_HELP)
    parser.add_argument("--num-repeats", type=positive_int, metavar="N", help="N rollouts of each task")
    parser.add_argument(
        "--concurrency", type=positive_int, metavar="N", default=32, help="rollouts at a time (default 32)"
    )


def _run(arguments: argparse.Namespace) -> int:
    from nemo_gym.cli.eval_run import RunOptions, run_benchmark

    configure_logging(arguments.verbose)
    request = ConfigRequest.from_arguments(arguments)
    options = RunOptions(
        output=arguments.output,
        overwrite=arguments.overwrite,
        limit=arguments.limit,
        task_ids=read_selection(arguments.task_ids),
        num_repeats=arguments.num_repeats,
        concurrency=arguments.concurrency,
        registry_port=arguments.registry_port,
        as_json=arguments.json,
        verbose=arguments.verbose,
    )
    return run_benchmark(request, options)


COMMANDS = [
    Command(
        "run",
        "serve a benchmark, run every task and show the rewards",
        _add_run_arguments,
        _run,
        description=(
            "Serve a benchmark, run every task, and show the rewards. Results are appended to PATH.jsonl as they "
            "arrive;\nbeside it stand PATH_failures.jsonl, PATH_materialized_inputs.jsonl, "
            "PATH_aggregate_metrics.json\nand PATH_images.lock.json.\nExits with 1 when a rollout failed for good."
        ),
    ),
    Command("plan", "print a benchmark's tasks and the digests of their inputs", _add_plan_arguments, _plan),
    Command("prepare", "fetch and prepare a benchmark's data", add_config_options, _prepare),
    *eval_results.COMMANDS,
    *eval_show.COMMANDS,
]
