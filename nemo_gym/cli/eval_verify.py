"""``gym eval reverify`` and ``gym eval aggregate``: results made from results, with the verifiers alone."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nemo_gym.cli.arguments import Command, command_line, positive_int, results_path
from nemo_gym.cli.eval_results import figure, tell
from nemo_gym.cli.output import configure_logging, emit, emit_json, emit_table, format_pairs, note
from nemo_gym.cli.stopping import run_async
from nemo_gym.cli.verifying import (
    ServedVerifiers,
    add_verifier_options,
    checked_output,
    served_verifiers,
    write_metrics,
)
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.environment.stored_runs import StoredRun
    from nemo_gym.rollouts.metrics import MeanReward
    from nemo_gym.rollouts.results import ResultPaths
    from nemo_gym.rollouts.reverify import Reverification, Verdict

_SHOWN: Final = 40
_TELL_EVERY_S: Final = 10.0
_LONGEST: Final = 40

# ---------------------------------------------------------------------------------------------------- reverify


@dataclass
class _Tally:
    """Verdicts as they come: those that say something new are kept, of the others their reward."""

    total: int
    done: int = 0
    changed: list[Verdict] = field(default_factory=list)
    failed: list[Verdict] = field(default_factory=list)
    before: dict[str, list[float]] = field(default_factory=dict)
    after: dict[str, list[float]] = field(default_factory=dict)
    told: float = field(default_factory=time.monotonic)

    def add(self, verdict: Verdict) -> None:
        self.done += 1
        if verdict.failure is not None:
            self.failed.append(verdict)
        elif verdict.has_changed:
            self.changed.append(verdict)
        for kept, reward in ((self.before, verdict.before), (self.after, verdict.after)):
            if reward is not None:
                kept.setdefault(verdict.task, []).append(reward)
        now = time.monotonic()
        if now - self.told >= _TELL_EVERY_S:
            self.told = now
            note(f"{self.done}/{self.total} rollouts verified again, {len(self.changed)} rewards changed")

    def in_order(self) -> None:
        for verdicts in (self.changed, self.failed):
            verdicts.sort(key=lambda verdict: (verdict.task_index, verdict.repeat))

    def counts(self) -> dict[str, int]:
        return {
            "verified": self.done - len(self.failed),
            "changed": len(self.changed),
            "failed": len(self.failed),
        }


def _add_reverify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of rollouts, or a folder with one")
    add_verifier_options(parser)
    parser.add_argument(
        "--output", type=results_path, metavar="PATH.jsonl", help="write the results with the new rewards"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace results that are there already")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a reward has changed")
    parser.add_argument("--all", action="store_true", help="list every reward that has changed")
    parser.add_argument(
        "--concurrency", type=positive_int, metavar="N", default=32, help="rollouts at a time (default 32)"
    )


def _reverify(arguments: argparse.Namespace) -> int:
    from nemo_gym.cli.run_files import held
    from nemo_gym.environment.stored_runs import read_run

    configure_logging(arguments.verbose)
    run = read_run(arguments.file)
    if not run.results.rollouts:
        raise ConfigError(f"{run.paths.rollouts} holds no result with a reward, so that there is nothing to verify.")
    if arguments.output is None:
        return _reverify_to(None, run, arguments)
    output = checked_output(arguments.output, [run.paths.rollouts], overwrite=arguments.overwrite)
    with held(output):
        return _reverify_to(output, run, arguments)


def _reverify_to(output: ResultPaths | None, run: StoredRun, arguments: argparse.Namespace) -> int:
    from nemo_gym.cli.concurrency import RESERVED_FILES, allow_files
    from nemo_gym.environment.stored_runs import name_task
    from nemo_gym.rollouts.reverify import Reverification, agents_in

    tally = _Tally(total=len(run.results.rollouts))
    concurrency = min(arguments.concurrency, tally.total)
    allow_files(concurrency + RESERVED_FILES)
    with served_verifiers(arguments, run, agents_in(run.paths, [])) as served:
        work = Reverification(run.paths, served.of_agent, name_task, output=output, redact=served.redact)
        problems = run_async(_verify_all(run.paths, work, served, concurrency, tally, output))
    tally.in_order()
    if output is not None:
        from nemo_gym.environment.reverified import finish_reverified_files

        command = command_line(arguments, served.secrets)
        counts = tally.counts()
        finish_reverified_files(run.paths, output, command=command, images=served.images, counts=counts)
    tell([*run.results.notices, *work.notices, *problems])
    _show_verdicts(tally, run, served, output, arguments)
    if tally.failed:
        note(f"gym: failed: {len(tally.failed)} of {tally.done} rollouts could not be verified.")
    return 1 if tally.failed or problems or (arguments.check and tally.changed) else 0


async def _verify_all(
    paths: ResultPaths,
    work: Reverification,
    served: ServedVerifiers,
    concurrency: int,
    tally: _Tally,
    output: ResultPaths | None,
) -> list[str]:
    from nemo_gym.environment.reverified import begin_reverified_files
    from nemo_gym.rollouts.verification import open_verifier_client

    async with open_verifier_client() as client:
        await work.check(client)
        if output is not None:
            begin_reverified_files(paths, output)
        try:
            await work.run(client, concurrency, tally.add)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [] if output is None else await write_metrics(client, served, output)


def _show_verdicts(
    tally: _Tally, run: StoredRun, served: ServedVerifiers, output: ResultPaths | None, arguments: argparse.Namespace
) -> None:
    from nemo_gym.rollouts.metrics import mean_reward

    before, after = mean_reward(tally.before), mean_reward(tally.after)
    files = {} if output is None else {name: str(path) for name, path in output.existing().items()}
    if arguments.json:
        emit_json(
            {
                "of": str(run.paths.rollouts),
                **tally.counts(),
                "changes": [verdict.to_dict() for verdict in tally.changed],
                "failures": [_redacted(verdict, served) for verdict in tally.failed],
                "mean_reward_before": _mean_dict(before),
                "mean_reward_after": _mean_dict(after),
                "verifiers": sorted({verifier.name for verifier in served.of_agent.values()}),
                "settings": [
                    {"key": key, "before": old, "after": new} for key, (old, new) in served.differing_settings.items()
                ],
                "files": files,
            }
        )
        return
    if tally.changed:
        _emit_changes(tally.changed, show_all=arguments.all)
        emit("")
    if tally.failed:
        rows = [[v.task, str(v.repeat), str(_redacted(v, served)["reason"])] for v in tally.failed[:_SHOWN]]
        emit_table(["task", "repeat", "why"], rows, title="Not verified, so without a reward")
        emit("")
    counts = tally.counts()
    shown = {
        "verified again": f"{counts['verified']} of {tally.done} rollouts, {counts['failed']} could not be",
        "rewards changed": str(counts["changed"]),
        "mean reward before": _mean_text(before),
        "mean reward now": _mean_text(after),
    }
    emit(format_pairs({**shown, **{f"{name}:": path for name, path in files.items()}}))


def _emit_changes(changed: Sequence[Verdict], *, show_all: bool) -> None:
    shown = changed if show_all else changed[:_SHOWN]
    rows = [
        [v.task, str(v.repeat), figure(v.before, 3), figure(v.after, 3), _fields_text(v.fields)]
        for v in shown
    ]  # fmt: skip
    emit_table(["task", "repeat", "before", "now", "beside it"], rows, title=f"Rewards that changed: {len(changed)}")
    if len(shown) < len(changed):
        note(f"{len(changed) - len(shown)} more: --all lists them.")


def _fields_text(fields: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name}: {_short(old)} -> {_short(new)}" for name, (old, new) in list(fields.items())[:3])


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _redacted(verdict: Verdict, served: ServedVerifiers) -> dict[str, Any]:
    found = verdict.to_dict()
    return {**found, "reason": served.redact(found["reason"])}


def _mean_dict(mean: MeanReward | None) -> dict[str, Any] | None:
    if mean is None:
        return None
    return {"mean": mean.mean, "interval_95": None if mean.interval is None else list(mean.interval)}


def _mean_text(mean: MeanReward | None) -> str:
    if mean is None:
        return "none"
    bounds = f" (95% interval {mean.interval[0]:.3f} to {mean.interval[1]:.3f})" if mean.interval else ""
    return f"{mean.mean:.4f}{bounds}"


# ---------------------------------------------------------------------------------------------------- aggregate


def _add_aggregate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, metavar="FILE", nargs="+", help="the rollouts of each shard")
    add_verifier_options(parser)
    parser.add_argument(
        "--output", type=results_path, metavar="PATH.jsonl", required=True, help="where the whole run goes"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace results that are there already")
    parser.add_argument("--allow-missing", action="store_true", help="put together what is there of the shards")
    parser.add_argument(
        "--allow-differing", action="store_true", help="put together what was configured or served otherwise"
    )
    parser.add_argument(
        "--no-verifier-metrics",
        action="store_true",
        help="start no server: leave out the metrics that only the benchmark's verifier computes",
    )


def _aggregate(arguments: argparse.Namespace) -> int:
    from nemo_gym.cli.run_files import held
    from nemo_gym.environment.stored_runs import find_one_result

    configure_logging(arguments.verbose)
    sources = [find_one_result(path).rollouts for path in arguments.files]
    output = checked_output(arguments.output, sources, overwrite=arguments.overwrite)
    with held(output):
        return _aggregate_to(output, sources, arguments)


def _aggregate_to(output: ResultPaths, sources: Sequence[Path], arguments: argparse.Namespace) -> int:
    from nemo_gym.cli.run_report import emit_report
    from nemo_gym.environment.aggregation import aggregate_runs
    from nemo_gym.environment.stored_runs import load_run

    notices = aggregate_runs(
        sources,
        output,
        command=command_line(arguments),
        allow_missing=arguments.allow_missing,
        allow_differing=arguments.allow_differing,
    )
    run = load_run(output)
    tell([*notices, *run.results.notices])
    problems = [] if arguments.no_verifier_metrics else _write_verifier_metrics(arguments, run)
    run = load_run(output)
    tell(problems)
    figures = run.figures()
    files = output.existing()
    if arguments.json:
        emit_json({**figures, "files": {name: str(path) for name, path in files.items()}})
    else:
        emit_report(run.tally(), figures, files)
    return 1 if problems else 0


def _write_verifier_metrics(arguments: argparse.Namespace, run: StoredRun) -> list[str]:
    from nemo_gym.rollouts.reverify import agents_in

    async def ask(served: ServedVerifiers) -> list[str]:
        from nemo_gym.rollouts.verification import open_verifier_client

        async with open_verifier_client() as client:
            return await write_metrics(client, served, run.paths)

    agents = agents_in(run.paths, [])
    if not agents:
        return []
    try:
        with served_verifiers(arguments, run, agents) as served:
            return run_async(ask(served))
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nThe rollouts are together in {run.paths.rollouts}; what is missing are the metrics that the "
            "verifier computes. --no-verifier-metrics --overwrite leaves them out."
        ) from error


COMMANDS = [
    Command(
        "aggregate",
        "make one run of the results of its shards",
        _add_aggregate_arguments,
        _aggregate,
        description=(
            "Make one run of the results of its shards: the same files and figures as one run would have had. The\n"
            "benchmark's verifiers are served alone, without a model, for the metrics that they compute. The same\n"
            "rollout in two files is an error, and so are shards that are missing, or were planned, configured or\n"
            "served otherwise."
        ),
    ),
    Command(
        "reverify",
        "compute the rewards of results anew with the current verifier",
        _add_reverify_arguments,
        _reverify,
        description=(
            "Compute the rewards of the results in FILE anew with the current verifier, and tell which change. No\n"
            "model answers again; a verifier that asks a judge asks it. Exits with 1 when a rollout could not be\n"
            "verified, and with --check also when a reward has changed."
        ),
    ),
]
