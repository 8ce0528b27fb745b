"""The summary that ``gym eval run`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nemo_gym.cli.output import emit, emit_table, format_pairs
from nemo_gym.rollouts.report import RunTally, distribution

_FEW_TASKS: Final = 30


def emit_report(tally: RunTally, figures: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """A table of rewards, the key metrics, and where the files are."""
    if len(tally.tasks()) <= _FEW_TASKS:
        _emit_tasks(tally)
        emit("")
    elif tally.scored:
        _emit_distribution(tally)
        emit("")
    emit_figures(figures)
    emit(format_pairs({f"{name}:": str(path) for name, path in files.items()}))


def emit_figures(figures: Mapping[str, Any]) -> None:
    """A run in figures, and the verifier's key metrics."""
    emit(format_pairs(_figures(figures)))
    emit("")
    if figures["key_metrics"]:
        emit("Key metrics")
        emit(format_pairs({name: _number(value) for name, value in figures["key_metrics"].items()}))
        emit("")


def _emit_tasks(tally: RunTally) -> None:
    if not tally.tasks():
        return
    rewards = tally.rewards_of_task()
    rows = []
    for task in tally.tasks():
        got = rewards.get(task, [])
        mean = f"{sum(got) / len(got):.3f}" if got else ""
        listed = " ".join(f"{reward:g}" for reward in got)
        rows.append([task, mean, listed, str(tally.failed.get(task, 0))])
    emit_table(["task", "mean reward", "rewards", "failed"], rows, title="Rewards")


def _emit_distribution(tally: RunTally) -> None:
    rewards = [reward for got in tally.rewards_of_task().values() for reward in got]
    rows = [[reward, str(count), f"{100 * count / len(rewards):.1f}%"] for reward, count in distribution(rewards)]
    emit_table(["reward", "rollouts", "share"], rows, title=f"Rewards of {len(tally.tasks())} tasks")


def _figures(figures: Mapping[str, Any]) -> dict[str, str]:
    rollouts = figures["rollouts"]
    shown = {"rollouts": f"{rollouts['scored']} of {rollouts['total']} with a reward, {rollouts['failed']} failed"}
    mean, interval = figures["mean_reward"], figures["mean_reward_interval_95"]
    if mean is not None:
        bounds = f" (95% interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
        shown["mean reward"] = f"{mean:.4f}{bounds}"
    shown |= {name: f"{value:.4f}" for name, value in figures["pass_rates"].items()}
    if figures["tokens"]:
        shown["tokens"] = ", ".join(
            f"{count} {name.removesuffix('_tokens')}" for name, count in figures["tokens"].items()
        )
    for name, spread in figures["tokens_per_rollout"].items():
        shown[f"{name.removesuffix('_tokens')} tokens per rollout"] = _spread(spread)
    if figures["latency_s"]:
        shown["seconds per rollout"] = _spread(figures["latency_s"])
    if figures["failure_classes"]:
        shown["failures"] = ", ".join(f"{count} {name}" for name, count in figures["failure_classes"].items())
    return shown


def _spread(percentiles: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in percentiles.items())


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
