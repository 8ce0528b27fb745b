"""``gym list``: what there is to choose from."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import Command, add_output_options, add_search_option
from nemo_gym.cli.output import emit, emit_json, emit_table, format_pairs

if TYPE_CHECKING:
    from nemo_gym.config.discovery import BenchmarkEntry, Entry, ServerEntry

# A table shows no more flavors of one benchmark than this; ``gym list benchmarks NAME`` shows all.
_MOST_FLAVORS_NAMED = 8

_SERVERS = {
    "models": ("responses_api_models", "model types", "--model-type"),
    "agents": ("responses_api_agents", "agents", ""),
    "resources-servers": ("resources_servers", "resources servers", ""),
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="show this one only; NAME/FLAVOR for a further config of it"
    )
    add_search_option(parser)
    add_output_options(parser)


def _list_benchmarks(arguments: argparse.Namespace) -> int:
    from nemo_gym.config.discovery import BenchmarkEntry, find_benchmark_config, list_benchmarks
    from nemo_gym.config.sources import search_roots

    roots = search_roots(arguments.search_dir)
    if arguments.name is None:
        return _show_all(list_benchmarks(roots), "benchmarks", arguments)
    # First of all it must exist: this names the nearest ones where it does not.
    path = find_benchmark_config(arguments.name, roots)
    return _show_one(list_benchmarks(roots), BenchmarkEntry(_folder(arguments.name), path), arguments)


def _list_servers(kind: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        from nemo_gym.config.discovery import ServerEntry, find_server_config, list_servers
        from nemo_gym.config.sources import search_roots

        roots = search_roots(arguments.search_dir)
        server_type, called, _ = _SERVERS[kind]
        if arguments.name is None:
            return _show_all(list_servers(server_type, roots), called, arguments)
        path = find_server_config(server_type, arguments.name, roots)
        otherwise = ServerEntry(_folder(arguments.name), path, server_type)
        return _show_one(list_servers(server_type, roots), otherwise, arguments)

    return run


def _show_all(entries: Sequence[BenchmarkEntry | ServerEntry], kind: str, arguments: argparse.Namespace) -> int:
    if arguments.json:
        emit_json([_as_json(entry) for entry in entries])
    elif entries:
        columns = {"name": _name, "domain": _domain, "rows": _num_rows, "needs": _needs, "description": _description}
        if kind != "benchmarks":
            columns = {title: columns[title] for title in ("name", "domain", "description")}
        emit_table(list(columns), [[cell(entry) for cell in columns.values()] for entry in entries])
    else:
        emit(f"There are no {kind}.")
    return 0


def _folder(name: str) -> str:
    return name.partition("/")[0]


def _show_one(entries: Sequence[Entry], found: Entry, arguments: argparse.Namespace) -> int:
    """Show the entry that has the name of ``found``, or the flavor of it; ``found`` where only a flavor is there."""
    from nemo_gym.config.discovery import describe_flavor

    entry = next((entry for entry in entries if entry.name == found.name), found)
    flavor = arguments.name.partition("/")[2]
    if flavor:
        entry = describe_flavor(entry, flavor, found.path)
    shown = _as_json(entry)
    if arguments.json:
        emit_json(shown)
    else:
        emit(format_pairs({key: _text(value) for key, value in shown.items() if value}))
    return 0


def _name(entry: BenchmarkEntry | ServerEntry) -> str:
    if len(entry.flavors) > _MOST_FLAVORS_NAMED:
        return f"{entry.name}, {entry.name}/{entry.flavors[0]} and {len(entry.flavors) - 1} more flavors"
    return ", ".join([entry.name, *(f"{entry.name}/{flavor}" for flavor in entry.flavors)])


def _domain(entry: BenchmarkEntry | ServerEntry) -> str:
    return entry.domain or ""


def _num_rows(entry: BenchmarkEntry | ServerEntry) -> str:
    num_rows = _facts(entry).get("num_rows")
    return "" if num_rows is None else f"{num_rows:,}"


def _needs(entry: BenchmarkEntry | ServerEntry) -> str:
    return ", ".join(_facts(entry).get("needs", ()))


def _facts(entry: BenchmarkEntry | ServerEntry) -> dict[str, Any]:
    """What a benchmark's data set says of itself; nothing for a server."""
    names = ("num_rows", "needs")
    return {name: getattr(entry, name) for name in names if hasattr(entry, name)}


def _description(entry: BenchmarkEntry | ServerEntry) -> str:
    return f"cannot be read: {entry.problem.splitlines()[0]}" if entry.problem is not None else entry.description


def _as_json(entry: BenchmarkEntry | ServerEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "description": entry.description,
        "domain": entry.domain,
        "flavors": list(entry.flavors),
        **_facts(entry),
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
