"""``gym eval profile`` and ``gym eval compare``: what results that are there say."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nemo_gym.cli.arguments import Command, add_output_options, positive_int, read_selection
from nemo_gym.cli.output import configure_logging, emit, emit_exactly, emit_json, emit_table, format_pairs, note
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.environment.run_comparison import RunComparison
    from nemo_gym.rollouts.comparison import Comparison, PairedTask, Side
    from nemo_gym.rollouts.profile import TaskProfile

_ORDERS: Final = ("task", "hardest", "easiest", "unstable", "slowest", "longest", "failed")
_COLUMNS: Final = {
    "task": "task",
    "repeats": "rollouts",
    "failed": "failed",
    "mean": "mean reward",
    "lowest": "min",
    "highest": "max",
    "spread": "std",
    "passed": "passed",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "latency_s": "seconds",
    "slowest_s": "slowest",
}
_FLIPS_SHOWN: Final = 20
_SETTINGS_SHOWN: Final = 40
_LONGEST_VALUE: Final = 60

# ---------------------------------------------------------------------------------------------------- profile


def _add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of rollouts, or a folder with one")
    parser.add_argument(
        "--sort",
        choices=_ORDERS,
        default="task",
        help="the order: of the rows (task), lowest or highest mean reward first (hardest, easiest), rewards that "
        "differ most between repeats (unstable), most seconds (slowest), output tokens (longest) or failures first",
    )
    parser.add_argument("--limit", type=positive_int, metavar="N", help="only the first N of them")
    parser.add_argument("--task-ids", metavar="IDS", help="only these tasks: a,b,c, or @FILE with one id a line")
    parser.add_argument("--below", type=float, metavar="R", help="only tasks with a mean reward below R")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    add_output_options(parser)


def _profile(arguments: argparse.Namespace) -> int:
    from nemo_gym.environment.stored_runs import read_run
    from nemo_gym.rollouts.profile import in_order, profile_tasks

    configure_logging(arguments.verbose)
    if arguments.csv and arguments.json:
        raise ConfigError("--csv and --json are two ways to print the same; give one of them.")
    run = read_run(arguments.file)
    profiles = profile_tasks(run.results)
    chosen = in_order(_chosen(profiles, arguments), arguments.sort)[: arguments.limit]
    tell(run.results.notices)
    if run.results.missing:
        note(f"{run.results.missing} of {run.results.expected} rollouts have not ended, and are not in these figures.")
    if arguments.json:
        emit_json({"tasks": [profile.to_dict() for profile in chosen], "summary": _without_rewards(run.figures())})
    elif arguments.csv:
        emit_exactly(_csv(chosen))
    else:
        from nemo_gym.cli.run_report import emit_figures

        emit_table(list(_COLUMNS.values()), [_profile_cells(profile) for profile in chosen])
        if len(chosen) < len(profiles):
            note(f"{len(chosen)} of {len(profiles)} tasks; the figures below are of all.")
        emit("")
        emit_figures(run.figures())
    return 0


def _chosen(profiles: Sequence[TaskProfile], arguments: argparse.Namespace) -> list[TaskProfile]:
    selection = read_selection(arguments.task_ids)
    if selection is not None:
        unknown = sorted(set(selection) - {profile.task for profile in profiles})
        if unknown:
            import difflib

            near = difflib.get_close_matches(unknown[0], [profile.task for profile in profiles], n=3)
            hint = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
            raise ConfigError(f"{arguments.file} has no rollout of task {unknown[0]!r}.{hint}")
    return [
        profile
        for profile in profiles
        if (selection is None or profile.task in selection)
        and (arguments.below is None or (profile.mean is not None and profile.mean < arguments.below))
    ]


def _profile_cells(profile: TaskProfile) -> list[str]:
    return [
        profile.task,
        str(profile.repeats),
        str(profile.failed),
        *(figure(value, 3) for value in (profile.mean, profile.lowest, profile.highest, profile.spread)),
        f"{profile.passed}/{profile.repeats}",
        figure(profile.input_tokens, 0),
        figure(profile.output_tokens, 0),
        figure(profile.latency_s, 2),
        figure(profile.slowest_s, 2),
    ]


def _csv(profiles: Iterable[TaskProfile]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for profile in profiles:
        values = profile.to_dict()
        writer.writerow(["" if values[column] is None else values[column] for column in _COLUMNS])
    return written.getvalue()


def _without_rewards(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name != "rewards"}


# ---------------------------------------------------------------------------------------------------- compare


def _add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="A", help="the results to compare with")
    parser.add_argument("second", type=Path, metavar="B", help="the results that are better, or not")
    parser.add_argument("--all", action="store_true", help="list every task that flipped, and every setting")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 when B lost a task, or does not have a reward for each task of A",
    )
    add_output_options(parser)


def _compare(arguments: argparse.Namespace) -> int:
    from nemo_gym.environment.run_comparison import compare_runs
    from nemo_gym.environment.stored_runs import read_run

    configure_logging(arguments.verbose)
    first, second = read_run(arguments.first), read_run(arguments.second)
    found = compare_runs(first, second)
    tell([*first.results.notices, *second.results.notices, *found.unknown])
    comparison = found.comparison
    files = {"first": str(first.paths.rollouts), "second": str(second.paths.rollouts)}
    if arguments.json:
        settings = [difference.to_dict() for difference in found.settings]
        emit_json({**comparison.to_dict(), "settings": settings, "unknown": list(found.unknown), "files": files})
    else:
        emit(format_pairs({"A": files["first"], "B": files["second"]}))
        emit("")
        _emit_comparison(comparison, show_all=arguments.all)
        _emit_settings(found, show_all=arguments.all)
    if not comparison.pairs:
        raise ConfigError(
            "The two runs have no task in common that both have a reward for and that asks the same in both, so that "
            "there is nothing to compare."
        )
    return 1 if arguments.check and comparison.fell_behind else 0


def _emit_comparison(comparison: Comparison, *, show_all: bool) -> None:
    sides = (("A", comparison.first), ("B", comparison.second))
    headers = ["", "tasks", "rollouts", "failed", "not ended", "mean reward", "95% interval"]
    emit_table(headers, [[name, *_side_cells(side)] for name, side in sides])
    emit("")
    emit(format_pairs(_comparison_pairs(comparison)))
    for title, pairs in (("Won by B", comparison.won), ("Lost by B", comparison.lost)):
        if pairs:
            emit("")
            _emit_flips(title, pairs, show_all=show_all)


def _side_cells(side: Side) -> list[str]:
    interval = side.mean.interval if side.mean is not None else None
    return [
        *map(str, (side.tasks, side.rollouts, side.failed, side.missing)),
        figure(side.mean.mean if side.mean is not None else None, 4),
        f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "",
    ]


def _comparison_pairs(comparison: Comparison) -> dict[str, str]:
    shown = {"tasks compared": str(len(comparison.pairs))}
    difference = comparison.difference
    if difference is not None:
        bounds = ""
        if difference.interval is not None:
            low, high = difference.interval
            verdict = "B is better" if low > 0 else "A is better" if high < 0 else "no difference can be told"
            bounds = f" (95% interval {low:+.4f} to {high:+.4f}: {verdict})"
        shown["B minus A, paired by task"] = f"{difference.mean:+.4f}{bounds}"
    won, lost = len(comparison.won), len(comparison.lost)
    shown["tasks that B"] = f"won {won}, lost {lost}, left the same {len(comparison.pairs) - won - lost}"
    shown["sign test"] = f"p = {comparison.p_value:.4g} for a split this uneven, were both the same"
    for name in ("pass@", "pass^"):
        for rate in (rate for rate in comparison.first.pass_rates if rate.startswith(name)):
            other = comparison.second.pass_rates.get(rate)
            if other is not None:
                shown[rate] = f"A {comparison.first.pass_rates[rate]:.4f}, B {other:.4f}"
    left_out = {
        "left out, only in A": comparison.only_in_first,
        "left out, only in B": comparison.only_in_second,
        "left out, asks something else in B": comparison.asked_otherwise,
        "left out, no reward in A or B": comparison.without_reward,
    }
    return shown | {why: f"{len(tasks)} ({_some(tasks)})" for why, tasks in left_out.items() if tasks}


def _emit_flips(title: str, pairs: Sequence[PairedTask], *, show_all: bool) -> None:
    largest = sorted(pairs, key=lambda pair: -abs(pair.difference))
    shown = largest if show_all else largest[:_FLIPS_SHOWN]
    rows = [[pair.task, f"{pair.first:.3f}", f"{pair.second:.3f}", f"{pair.difference:+.3f}"] for pair in shown]
    emit_table(["task", "A", "B", "B minus A"], rows, title=f"{title}: {len(pairs)} tasks")
    if len(shown) < len(pairs):
        note(f"{len(pairs) - len(shown)} more: --all lists them.")


def _emit_settings(found: RunComparison, *, show_all: bool) -> None:
    if not found.settings:
        return
    shown = found.settings if show_all else found.settings[:_SETTINGS_SHOWN]
    emit("")
    rows = [[setting.key, _value(setting.first, show_all), _value(setting.second, show_all)] for setting in shown]
    emit_table(["setting", "A", "B"], rows, title="Set otherwise, so that this may be why")
    if len(shown) < len(found.settings):
        note(f"{len(found.settings) - len(shown)} more settings differ: --all lists them.")


# --------------------------------------------------------------------------------------------------- common


def tell(notices: Iterable[str]) -> None:
    """Say what a person should know about the files, each once."""
    for notice in dict.fromkeys(notices):
        note(notice)


def figure(value: float | None, digits: int) -> str:
    """A number for a table; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def _value(value: str | None, whole: bool) -> str:
    if value is None:
        return "-"
    return value if whole or len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"


def _some(tasks: Sequence[str]) -> str:
    return ", ".join(tasks[:5]) + (", ..." if len(tasks) > 5 else "")


COMMANDS = [
    Command(
        "profile",
        "show results task by task: rewards, tokens, seconds, failures",
        _add_profile_arguments,
        _profile,
        description=(
            "Show the results in FILE task by task, and all of them in figures. No server is started.\n"
            "`--sort hardest --limit 20` shows what goes wrong most, `--sort unstable` what changes between repeats."
        ),
        takes_overrides=False,
    ),
    Command(
        "compare",
        "compare two runs task by task: the difference, its interval, what flipped",
        _add_compare_arguments,
        _compare,
        description=(
            "Compare the results of two runs task by task: the mean difference B minus A with its 95% interval, the\n"
            "tasks that were won and lost, and the settings in which the runs differ. Tasks that are not in both, ask\n"
            "something else or have no reward are left out, and told."
        ),
        takes_overrides=False,
    ),
]
