"""The options of ``gym eval run``, and what they mean together."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from nemo_gym.cli.arguments import (
    ConfigRequest,
    add_config_options,
    add_lock_option,
    add_model_options,
    add_sampling_options,
    command_line,
    positive_int,
    read_selection,
    results_path,
)
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.cli.run_plan import RunOptions
    from nemo_gym.rollouts.registry_client import RegistryAddress
    from nemo_gym.rollouts.shards import Shard

T = TypeVar("T")
DEFAULT_REGISTRY = "127.0.0.1:11000"
TASK_IDS_HELP = "only these tasks: a,b,c, or @FILE with one id a line"
_OF_SERVING = ("model_type", "model", "model_url", "model_api_key", "registry_port", "locked")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    add_config_options(parser)
    add_model_options(parser)
    add_lock_option(parser)
    parser.add_argument(
        "--output",
        type=results_path,
        metavar="PATH.jsonl",
        help="where the results go; results/<benchmark>-<time>.jsonl",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--overwrite", action="store_true", help="replace results that are there already")
    existing.add_argument(
        "--resume",
        action="store_true",
        help="go on where the run in --output ended, and try again what failed; begins it where there is nothing yet",
    )
    parser.add_argument("--limit", type=positive_int, metavar="N", help="only the first N tasks")
    parser.add_argument("--task-ids", metavar="IDS", help=TASK_IDS_HELP)
    parser.add_argument("--num-repeats", type=positive_int, metavar="N", help="N rollouts of each task")
    parser.add_argument(
        "--shard",
        type=_shard,
        metavar="i/n",
        help="only the i-th of n parts of the tasks, i from 1; the results go to PATH-i-of-n.jsonl",
    )
    parser.add_argument(
        "--concurrency", type=positive_int, metavar="N", default=32, help="rollouts at a time (default 32)"
    )
    parser.add_argument(
        "--run-id", type=_run_id, metavar="ID", help="what rollout ids begin with; made up when left out"
    )
    parser.add_argument("--no-serve", action="store_true", help="start no servers: use some that run already")
    parser.add_argument(
        "--registry",
        metavar="HOST:PORT",
        help=f"where their registry answers ({DEFAULT_REGISTRY}); implies --no-serve. NEMO_GYM_TOKEN is their token",
    )
    add_sampling_options(parser)


def read_run_options(arguments: argparse.Namespace) -> tuple[ConfigRequest, RunOptions]:
    """What they ask for; ``ConfigError`` when they do not go together."""
    from nemo_gym.cli.run_plan import RunOptions

    registry = _registry(arguments)
    return ConfigRequest.from_arguments(arguments), RunOptions(
        output=arguments.output,
        overwrite=arguments.overwrite,
        resume=arguments.resume,
        limit=arguments.limit,
        task_ids=read_selection(arguments.task_ids),
        num_repeats=arguments.num_repeats,
        shard=arguments.shard,
        concurrency=arguments.concurrency,
        registry_port=arguments.registry_port,
        registry=registry,
        run_id=arguments.run_id,
        command=command_line(arguments),
        as_json=arguments.json,
        verbose=arguments.verbose,
    )


def _registry(arguments: argparse.Namespace) -> RegistryAddress | None:
    """Where servers run that are to be used; None when some are to be started."""
    from nemo_gym.config.token import token_of
    from nemo_gym.rollouts.registry_client import RegistryAddress

    if not arguments.no_serve and arguments.registry is None:
        return None
    option = "--no-serve" if arguments.no_serve else "--registry"
    for attribute in _OF_SERVING:
        if getattr(arguments, attribute) is not None:
            raise ConfigError(
                f"--{attribute.replace('_', '-')} says what to serve, and {option} that servers run already. Leave "
                "one of them out."
            )
    where = arguments.registry or DEFAULT_REGISTRY
    host, _, port = where.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"--registry {where!r}: needed HOST:PORT, such as {DEFAULT_REGISTRY}.")
    return RegistryAddress(host.strip("[]"), int(port), token_of(os.environ))


def _shard(text: str) -> Shard:
    from nemo_gym.rollouts.shards import parse_shard

    return _read(parse_shard, text)


def _run_id(text: str) -> str:
    from nemo_gym.rollouts.rows import check_rollout_id

    return _read(check_rollout_id, text)


def _read(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except (ValueError, ConfigError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
