"""Options that several commands share, and what they mean together: one request for a configuration."""

from __future__ import annotations

import argparse
import difflib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.config.home import expanded
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

DEFAULT_MODEL_TYPE = "openai_model"
_KEY_OPTIONS = {
    "model": ("--model", "policy_model_name"),
    "model_url": ("--model-url", "policy_base_url"),
    "model_api_key": ("--model-api-key", "policy_api_key"),
    "locked": ("--locked", "image_lock"),
}
_SECRET_OPTIONS = ("--model-api-key",)
_SAMPLING_OPTIONS = {
    "temperature": ("--temperature", ("temperature",)),
    "top_p": ("--top-p", ("top_p",)),
    "max_output_tokens": ("--max-output-tokens", ("max_output_tokens",)),
    "reasoning_effort": ("--reasoning-effort", ("reasoning", "effort")),
}
_PARAMS = "responses_create_params"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a group: how it is called and what it does."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    description: str = ""
    takes_overrides: bool = True


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--verbose``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell every step on stderr")


def add_search_option(parser: argparse.ArgumentParser) -> None:
    """``--search-dir``."""
    parser.add_argument(
        "--search-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with benchmarks/ or images/ of your own, looked in before all others; may be repeated",
    )


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """What says which configuration is meant."""
    parser.add_argument("--benchmark", metavar="NAME", help="a benchmark, as NAME or NAME/FLAVOR")
    parser.add_argument(
        "--config", action="append", default=[], metavar="PATH", help="a further config file; may be repeated"
    )
    add_search_option(parser)
    add_output_options(parser)


def add_model_options(
    parser: argparse.ArgumentParser,
    *,
    serves: bool = True,
    without_type: str = f"{DEFAULT_MODEL_TYPE} when left out",
) -> None:
    """What says which model answers and, for a command that serves, where the registry does."""
    parser.add_argument(
        "--model-type",
        metavar="TYPE",
        help=f"the kind of model server (`gym list models`); {without_type}",
    )
    parser.add_argument("--model", metavar="NAME", help="the model's name at its endpoint (policy_model_name)")
    parser.add_argument("--model-url", metavar="URL", help="the endpoint, up to /v1 (policy_base_url)")
    parser.add_argument(
        "--model-api-key",
        metavar="KEY",
        help="its key (policy_api_key): env:NAME reads an environment variable and @PATH a file, so that the key "
        "does not show in the list of processes",
    )
    if serves:
        parser.add_argument("--registry-port", type=_port, metavar="PORT", help="the port of the registry server")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """What every row asks of the model, whatever the row itself says; so it is part of the plan."""
    sampling = parser.add_argument_group("sampling, for every row (responses_create_params)")
    sampling.add_argument("--temperature", type=_number_to(None), metavar="T", help="0 or more")
    sampling.add_argument("--top-p", type=_number_to(1.0), metavar="P", help="0 to 1")
    sampling.add_argument("--max-output-tokens", type=positive_int, metavar="N", help="the longest answer, in tokens")
    sampling.add_argument("--reasoning-effort", metavar="LEVEL", help="low, medium, high or what the endpoint takes")


def add_lock_option(parser: argparse.ArgumentParser) -> None:
    """``--locked``."""
    parser.add_argument(
        "--locked",
        metavar="PATH",
        help="a lock file of images (`gym images lock`, or beside results): refuse to serve from others (image_lock)",
    )


def refuse_leftovers(arguments: argparse.Namespace, leftovers: Sequence[str]) -> list[str]:
    """The overrides among the arguments that no option took; ``ConfigError`` for anything else."""
    for leftover in leftovers:
        if leftover.startswith("-"):
            near = difflib.get_close_matches(leftover.partition("=")[0], arguments.known_options, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"`{arguments.prog} --help` lists the options."
            raise ConfigError(f"`{arguments.prog}` has no option {leftover}. {hint}")
        if not arguments.takes_overrides or "=" not in leftover:
            raise ConfigError(
                f"`{arguments.prog}` does not know what to do with {leftover!r}."
                + (" A configuration key is set with key=value." if arguments.takes_overrides else "")
            )
    return list(leftovers)


@dataclass(frozen=True)
class ConfigRequest:
    """The configuration that a command line asks for."""

    benchmark: str | None
    config_paths: tuple[str, ...]
    overrides: dict[str, Any]
    search_dirs: tuple[str, ...]
    model_type: str | None

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> ConfigRequest:
        """Read the options of ``add_config_options`` and, where the command has them, ``add_model_options``."""
        from nemo_gym.config.overrides import parse_cli_overrides

        if arguments.benchmark is None and not arguments.config:
            raise ConfigError("Say which benchmark: --benchmark NAME. `gym list benchmarks` lists what there is.")
        overrides = parse_cli_overrides(arguments.overrides)
        for attribute, (option, key) in _KEY_OPTIONS.items():
            value = getattr(arguments, attribute, None)
            if value is None:
                continue
            if key in overrides:
                raise ConfigError(f"{option} and {key}=... both set the same key; give one of them.")
            overrides[key] = _read_key(value) if attribute == "model_api_key" else value
        _add_sampling(arguments, overrides)
        model_type = getattr(arguments, "model_type", None)
        if model_type is None and arguments.benchmark is not None:
            model_type = DEFAULT_MODEL_TYPE
        return cls(
            benchmark=arguments.benchmark,
            config_paths=tuple(arguments.config),
            overrides=overrides,
            search_dirs=tuple(arguments.search_dir),
            model_type=model_type,
        )

    def planning_paths(self) -> list[str | Path]:
        """The config files that planning and preparing read."""
        from nemo_gym.config.discovery import find_benchmark_config
        from nemo_gym.config.sources import search_roots

        if self.benchmark is None:
            return list(self.config_paths)
        return [find_benchmark_config(self.benchmark, search_roots(self.search_dirs)), *self.config_paths]

    def serving_paths(self) -> list[str | Path]:
        """The same, and the model server's."""
        from nemo_gym.config.discovery import find_model_config
        from nemo_gym.config.sources import search_roots

        planning = self.planning_paths()
        if self.model_type is None:
            return planning
        # The benchmark and what is asked for with --config may change the model's settings: they come after it.
        model = find_model_config(self.model_type, search_roots(self.search_dirs))
        return [*planning[:1], model, *planning[1:]] if self.benchmark is not None else [model, *planning]

    def load_for_planning(self) -> DictConfig:
        """The resolved config, with what only serving needs left open."""
        from nemo_gym.config.resolve import load_config

        return load_config(self.planning_paths(), self.overrides, search_dirs=self.search_dirs, serving=False)

    def load_for_serving(self) -> DictConfig:
        """The resolved config with nothing left open."""
        from nemo_gym.config.resolve import load_config

        return load_config(self.serving_paths(), self.overrides, search_dirs=self.search_dirs, serving=True)


def command_line(arguments: argparse.Namespace, secrets: Iterable[str] = ()) -> list[str]:
    """This command as typed, without the keys that it gives and without ``secrets``."""
    from nemo_gym.config.overrides import parse_cli_overrides
    from nemo_gym.config.redaction import MASK, find_secrets, redact_text
    from nemo_gym.rollouts.provenance import masked_command

    known = {*secrets, *find_secrets(parse_cli_overrides(arguments.overrides))}
    words = masked_command(arguments.argv, _SECRET_OPTIONS, MASK)
    return ["gym", *(redact_text(word, known) for word in words)]


def read_selection(text: str | None) -> list[str] | None:
    """The task ids of ``--task-ids``: ``a,b,c``, or ``@FILE`` with one a line."""
    if text is None:
        return None
    if text.startswith("@"):
        from nemo_gym.environment.collated_files import read_task_ids

        return read_task_ids(expanded(text[1:], "--task-ids @FILE"))
    ids = [task_id.strip() for task_id in text.split(",")]
    if not all(ids):
        raise ConfigError(f"--task-ids {text!r} holds an empty id. Needed: a,b,c or @FILE with one id a line.")
    return ids


def positive_int(text: str) -> int:
    """An argument that must be a whole number from 1 on."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on; found {text!r}")
    return number


def results_path(text: str) -> Path:
    """An argument that names new results: ``PATH.jsonl``, and no file that would stand beside others."""
    from nemo_gym.rollouts.results import SIDE_FILES

    path = Path(text)
    if path.suffix != ".jsonl":
        raise argparse.ArgumentTypeError(f"must be a name that ends in .jsonl, as results/x.jsonl; found {text!r}")
    for side in SIDE_FILES:
        if path.name.endswith(side):
            raise argparse.ArgumentTypeError(
                f"must not end in {side}, which is how a file beside results is called; found {text!r}"
            )
    return path


def _add_sampling(arguments: argparse.Namespace, overrides: dict[str, Any]) -> None:
    """The sampling options as overrides."""
    for attribute, (option, steps) in _SAMPLING_OPTIONS.items():
        value = getattr(arguments, attribute, None)
        if value is None:
            continue
        node = overrides
        for step in (_PARAMS, *steps[:-1]):
            node = node.setdefault(step, {})
            if not isinstance(node, dict):
                raise ConfigError(
                    f"{option} sets {'.'.join((_PARAMS, *steps))}, and {step}=... leaves no place for it."
                )
        if steps[-1] in node:
            raise ConfigError(
                f"{option} and {'.'.join((_PARAMS, *steps))}=... both set the same key; give one of them."
            )
        node[steps[-1]] = value


def _number_to(most: float | None) -> Callable[[str], float]:
    """A reader of numbers from 0 on, up to ``most``."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number <= (math.inf if most is None else most) or math.isinf(number):
            wanted = "from 0 on" if most is None else f"from 0 to {most:g}"
            raise argparse.ArgumentTypeError(f"must be a number {wanted}; found {text!r}")
        return number

    return read


def _port(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port number from 1 to 65535; found {text!r}")
    return number


def _read_key(value: str) -> str:
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        key = os.environ.get(name)
        if not key:
            raise ConfigError(f"--model-api-key env:{name}: the environment variable {name} is not set.")
        return key
    if value.startswith("@"):
        path = expanded(value[1:], "--model-api-key @PATH")
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--model-api-key {value}: cannot read the key: {error}.") from None
        if not key:
            raise ConfigError(f"--model-api-key {value}: the file is empty.")
        return key
    return value
