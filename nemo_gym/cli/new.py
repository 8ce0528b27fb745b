"""``gym new``: a server or a benchmark of one's own, which builds, serves and passes its own test from the start."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path

from nemo_gym.cli import scaffold
from nemo_gym.cli.arguments import Command, add_output_options
from nemo_gym.cli.output import emit, emit_json, note
from nemo_gym.cli.scaffold import AGENT, BENCHMARK, MODEL, RESOURCES_SERVER, Kind
from nemo_gym.config.home import expanded
from nemo_gym.errors import ConfigError

_DEFAULT_RESOURCES_SERVER = "mcqa"
_DEFAULT_AGENT = "simple_agent"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="small letters, digits and _, such as my_judge")
    parser.add_argument(
        "--directory",
        type=_folder,
        default=Path(),
        metavar="DIR",
        help="the folder that holds, or is to hold, images/ and benchmarks/; the working directory when left out",
    )
    add_output_options(parser)


def _add_benchmark_arguments(parser: argparse.ArgumentParser) -> None:
    _add_arguments(parser)
    parser.add_argument(
        "--resources-server",
        default=_DEFAULT_RESOURCES_SERVER,
        metavar="SERVER",
        help=f"what verifies its answers (`gym list resources-servers`); {_DEFAULT_RESOURCES_SERVER} when left out",
    )
    parser.add_argument(
        "--agent",
        default=_DEFAULT_AGENT,
        metavar="AGENT",
        help=f"what runs its tasks (`gym list agents`); {_DEFAULT_AGENT} when left out",
    )


def _new_server(kind: Kind) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        name = arguments.name
        scaffold.check_name(kind, name, _roots(arguments.directory))
        return _make(kind, {"name": name}, _SERVER_STEPS[kind.name].format(name=name), arguments)

    return run


_SERVER_STEPS = {
    RESOURCES_SERVER.name: "gym new benchmark NAME --resources-server {name}",
    AGENT.name: "gym new benchmark NAME --agent {name}",
    MODEL.name: "gym eval run --benchmark truthfulqa_mc1 --model-type {name} --limit 5 --output results/{name}.jsonl",
}


def _new_benchmark(arguments: argparse.Namespace) -> int:
    name, roots = arguments.name, _roots(arguments.directory)
    scaffold.check_name(BENCHMARK, name, roots)
    agent = scaffold.server_values(AGENT, arguments.agent, roots)
    server = scaffold.server_values(RESOURCES_SERVER, arguments.resources_server, roots)
    step = f"gym eval run --benchmark {name} --model-type llama_cpp_model --output results/{name}.jsonl"
    return _make(BENCHMARK, {"name": name, **agent, **server}, step, arguments)


def _make(kind: Kind, values: dict[str, str], last_step: str, arguments: argparse.Namespace) -> int:
    """Write the files, and say which, and what to type next."""
    folder = arguments.directory / kind.folder / values["name"]
    paths = scaffold.write_folder(folder, scaffold.render(kind, values))
    steps = [f"python -m pytest {kind.folder}/{values['name']}", last_step]
    if arguments.directory.resolve() != Path.cwd():
        # Names are looked for in the working directory, and so are modules by its test.
        steps.insert(0, f"cd {shlex.quote(str(arguments.directory))}")
    if arguments.json:
        made = {"kind": kind.called, "name": values["name"], "folder": str(folder)}
        emit_json({**made, "files": [str(path) for path in paths], "next": steps})
        return 0
    emit("\n".join(map(str, paths)))
    note("\n".join(["", "Next:", *(f"  {step}" for step in steps)]))
    if values.get("resources_server", _DEFAULT_RESOURCES_SERVER) != _DEFAULT_RESOURCES_SERVER:
        server = values["resources_server"]
        note(f"Its rows have question, options and expected_answer: make them what {server} asks for, if that is more.")
    return 0


def _folder(text: str) -> Path:
    try:
        return expanded(text, "the folder")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _roots(directory: Path) -> list[Path]:
    """Where names are looked for: the folder that is written to first, which need not be there yet."""
    from nemo_gym.config.sources import search_roots

    return list(dict.fromkeys([directory.resolve(), *search_roots()]))


COMMANDS = [
    Command(
        "resources-server",
        "a resources server: a typed tool and a verifier",
        _add_arguments,
        _new_server(RESOURCES_SERVER),
        takes_overrides=False,
    ),
    Command("agent", "an agent that asks the model once", _add_arguments, _new_server(AGENT), takes_overrides=False),
    Command("model", "a model server", _add_arguments, _new_server(MODEL), takes_overrides=False),
    Command(
        "benchmark",
        "a benchmark: four questions, a prompt, and the servers for them",
        _add_benchmark_arguments,
        _new_benchmark,
        takes_overrides=False,
    ),
]
