"""``gym completion``: scripts that complete commands, options and names in bash and zsh."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, Final

from nemo_gym.cli.arguments import Command
from nemo_gym.cli.output import emit

# What an option's or positional's value is: names of this package's own, files or folders.
_VALUES: Final = {
    "--benchmark": "benchmarks",
    "--model-type": "models",
    "--agent": "agents",
    "--resources-server": "resources-servers",
    "--config": "file",
    "--locked": "file",
    "--output": "file",
    "--search-dir": "directory",
    "--directory": "directory",
    "--cache-dir": "directory",
}

_FOLDERS: Final = {
    "benchmarks": "benchmarks",
    "models": "images/responses_api_models",
    "agents": "images/responses_api_agents",
    "resources-servers": "images/resources_servers",
}

# The names are asked for when they are needed: a script that is kept need not know of tomorrow's benchmarks.
_BASH_NAMES: Final = (
    '_gym_{function}() {{ compgen -W "$("${{COMP_WORDS[0]}}" completion names {kind} 2>/dev/null)" -- "$1"; }}'
)
_ZSH_NAMES: Final = (
    '_gym_{function}() {{ local -a names; names=(${{(f)"$(gym completion names {kind} 2>/dev/null)"}}); '
    "compadd -a names; }}"
)

_INSTALL: Final = """\
Print a script that completes commands, options, and the names of benchmarks and servers.

  bash: source <(gym completion bash), in ~/.bashrc; or once:
        gym completion bash > ~/.local/share/bash-completion/completions/gym
  zsh:  gym completion zsh > DIR/_gym, where DIR is in $fpath, before compinit"""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for ``shell``, made from the parser of the whole command line."""
    import shtab

    for action, kind in _values(parser):
        if kind in ("file", "directory"):
            action.complete = shtab.FILE if kind == "file" else shtab.DIRECTORY  # type: ignore[attr-defined]
        else:
            action.complete = {name: f"_gym_{_function(kind)}" for name in ("bash", "zsh")}  # type: ignore[attr-defined]
    line = {"bash": _BASH_NAMES, "zsh": _ZSH_NAMES}[shell]
    functions = [line.format(function=_function(kind), kind=kind) for kind in _FOLDERS]
    return str(shtab.complete(parser, shell=shell, preamble="\n".join(functions)))


def _values(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[argparse.Action, str]]:
    """Each action of the parser and of its commands whose value is one of ``_VALUES``, and which."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from _values(command, (*path, name))
        elif action.option_strings:
            yield from ((action, _VALUES[option]) for option in action.option_strings if option in _VALUES)
        elif path[:1] == ("list",) and action.dest == "name":
            yield action, path[1]


def _function(kind: str) -> str:
    return kind.replace("-", "_")


def _print_script(shell: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        from nemo_gym.cli.main import build_parser

        emit(completion_script(build_parser(), shell))
        return 0

    return run


def _print_names(arguments: argparse.Namespace) -> int:
    from nemo_gym.config.discovery import list_names
    from nemo_gym.config.sources import search_roots

    emit("\n".join(list_names(_FOLDERS[arguments.kind], search_roots())))
    return 0


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def _add_kind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", type=_kind, metavar="KIND", help=", ".join(_FOLDERS))


def _kind(text: str) -> str:
    if text not in _FOLDERS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(_FOLDERS)}; found {text!r}")
    return text


_options: dict[str, Any] = {"description": _INSTALL, "takes_overrides": False}

COMMANDS = [
    Command("bash", "print the script for bash", _no_arguments, _print_script("bash"), **_options),
    Command("zsh", "print the script for zsh", _no_arguments, _print_script("zsh"), **_options),
    Command("names", "print the names that the scripts ask for", _add_kind, _print_names, takes_overrides=False),
]
