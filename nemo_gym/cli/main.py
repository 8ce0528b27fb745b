"""The ``gym`` command: which command was meant, how it ended, and the exit code for that.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 76 a benchmark's own preparation failed (and would fail the
same way again), 130 interrupted, 128 plus the number for another signal. Commands import what they need when they
run, so that ``gym --help`` needs nothing.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import nemo_gym
from nemo_gym.cli import clean, completion, env, eval, images, listing, new
from nemo_gym.cli.arguments import Command, refuse_leftovers
from nemo_gym.cli.output import StdoutClosedError, logging_restored, note, stderr_there
from nemo_gym.cli.stopping import Stopped, signals_raise
from nemo_gym.errors import ConfigError, NemoGymError

FAILED = 1
USAGE = 2
STDOUT_CLOSED = 141  # what a shell shows for a program ended by SIGPIPE

_EXAMPLES = """\
examples:
  gym list benchmarks
  gym eval run --benchmark truthfulqa_mc1 --model-type llama_cpp_model --output results/x.jsonl
  gym eval run --benchmark gsm8k --model my-model --model-url http://127.0.0.1:8000/v1 \\
      --model-api-key env:MY_KEY --output results/y.jsonl
  gym env start --benchmark truthfulqa_mc1 --model-type llama_cpp_model
  gym new benchmark my_benchmark

Configuration keys are set with key=value; dots are paths: ++policy_model.responses_api_models.openai_model.x=1
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that names the nearest command when it does not know one."""

    commands: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"invalid choice: '([^']*)'", message)
        if unknown and self.commands:  # and not the value of an option
            near = difflib.get_close_matches(unknown[1], self.commands, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.commands)}"
            message = f"no command {unknown[1]!r}: {hint}"
        self.exit(USAGE, f"{self.prog}: error: {message}\n(`{self.prog} --help` shows how it is used)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``namespace.run`` is what the command does."""
    parser = _Parser(
        prog="gym",
        description="Plan a benchmark, serve its servers in containers, run its tasks.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gym {nemo_gym.__version__}")
    groups = parser.add_subparsers(metavar="COMMAND", required=True)
    described: list[tuple[str, str, Sequence[Command]]] = [
        ("list", "show which benchmarks, models, agents and resources servers there are", listing.COMMANDS),
        ("env", "start, watch and stop a benchmark's servers, or show its configuration", env.COMMANDS),
        ("eval", "prepare, plan or run a benchmark", eval.COMMANDS),
        ("images", "build, show, push, lock or remove the images of servers", images.COMMANDS),
        ("new", "begin a server or a benchmark of your own", new.COMMANDS),
        ("completion", "print a script that completes commands and names in bash or zsh", completion.COMMANDS),
    ]
    for name, summary, commands in described:
        group = groups.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        _add_commands(group, commands)
    _add_command(groups, clean.COMMAND)
    _name_commands(parser, [*(name for name, _, _ in described), clean.COMMAND.name])
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with stderr_there(), signals_raise(), logging_restored():
            return _run(sys.argv[1:] if argv is None else argv)
    except Stopped as stopped:
        note(f"gym: stopped by {stopped}")
        return stopped.exit_code
    except KeyboardInterrupt:
        return 130
    except StdoutClosedError:
        return STDOUT_CLOSED


def _run(argv: Sequence[str]) -> int:
    parser = build_parser()
    try:
        arguments, leftovers = parser.parse_known_args(list(argv))
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else USAGE
    try:
        arguments.argv = list(argv)
        arguments.overrides = refuse_leftovers(arguments, leftovers)
        code: int = arguments.run(arguments)
        return code
    except ConfigError as error:
        note(f"gym: error: {error}")
        return USAGE
    except (NemoGymError, OSError) as error:
        note(f"gym: failed: {error}")
        return FAILED
    except RuntimeError as error:
        # PreparationFailedError brings its exit code along; importing its module here would slow every command.
        code = getattr(error, "stop_exit_code", None) or 0
        if not code:
            raise
        note("\n".join([f"gym: failed: {error}", *getattr(error, "__notes__", ())]))
        return code


def _add_commands(group: argparse.ArgumentParser, commands: Sequence[Command]) -> None:
    choices = group.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        _add_command(choices, command)
    _name_commands(group, [command.name for command in commands])


def _add_command(choices: argparse._SubParsersAction[Any], command: Command) -> None:
    parser = choices.add_parser(
        command.name,
        help=command.summary,
        description=command.description or command.summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run, takes_overrides=command.takes_overrides, prog=parser.prog)
    if command.takes_overrides:
        parser.usage = parser.format_usage().removeprefix("usage: ").strip() + " [key=value ...]"
    parser.set_defaults(known_options=[option for action in parser._actions for option in action.option_strings])


def _name_commands(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    if isinstance(parser, _Parser):
        parser.commands = tuple(names)
