"""``gym list``: what there is to choose from."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import Command, add_output_options, add_search_option
from nemo_gym.cli.output import emit, emit_json, emit_table, format_pairs
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.config.discovery import BenchmarkEntry, ServerEntry

_SERVERS = {
    "models": ("responses_api_models", "model types", "--model-type"),
    "agents": ("responses_api_agents", "agents", ""),
    "resources-servers": ("resources_servers", "resources servers", ""),
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one only")
    add_search_option(parser)
    add_output_options(parser)


def _list_benchmarks(arguments: argparse.Namespace) -> int:
    from nemo_gym.config.discovery import list_benchmarks
    from nemo_gym.config.sources import search_roots

    return _show(list_benchmarks(search_roots(arguments.search_dir)), "benchmarks", arguments)


def _list_servers(kind: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        from nemo_gym.config.discovery import list_servers
        from nemo_gym.config.sources import search_roots

        return _show(list_servers(_SERVERS[kind][0], search_roots(arguments.search_dir)), kind, arguments)

    return run


def _show(entries: Sequence[BenchmarkEntry | ServerEntry], kind: str, arguments: argparse.Namespace) -> int:
    if arguments.name is not None:
        entries = [_find(entries, kind, arguments.name)]
    if arguments.json:
        emit_json([_as_json(entry) for entry in entries] if arguments.name is None else _as_json(entries[0]))
    elif arguments.name is not None:
        emit(format_pairs({name: _text(value) for name, value in _as_json(entries[0]).items() if value}))
    elif not entries:
        emit(f"There are no {kind}.")
    else:
        emit_table(["name", "domain", "description"], [_row(entry) for entry in entries])
    return 0


def _find(entries: Sequence[BenchmarkEntry | ServerEntry], kind: str, name: str) -> BenchmarkEntry | ServerEntry:
    names = [entry.name for entry in entries]
    folder, _, flavor = name.partition("/")
    for entry in entries:
        if entry.name == folder and (not flavor or flavor in entry.flavors):
            return entry
    near = difflib.get_close_matches(folder, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names) or 'none'}."
    raise ConfigError(f"{name!r} is none of the {kind}. {hint}")


def _row(entry: BenchmarkEntry | ServerEntry) -> list[str]:
    described = entry.description or ""
    if entry.problem is not None:
        described = f"cannot be read: {entry.problem.splitlines()[0]}"
    names = [entry.name, *(f"{entry.name}/{flavor}" for flavor in entry.flavors)]
    return [", ".join(names), entry.domain or "", described]


def _as_json(entry: BenchmarkEntry | ServerEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "description": entry.description,
        "domain": entry.domain,
        "flavors": list(entry.flavors),
        "config": str(entry.path),
        **({"problem": entry.problem} if entry.problem else {}),
    }


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


COMMANDS = [
    Command(
        "benchmarks",
        "benchmarks, for --benchmark NAME",
        _add_arguments,
        _list_benchmarks,
        takes_overrides=False,
    ),
    *(
        Command(
            kind,
            f"{what}, for {option} NAME" if option else what,
            _add_arguments,
            _list_servers(kind),
            takes_overrides=False,
        )
        for kind, (_, what, option) in _SERVERS.items()
    ),
]
