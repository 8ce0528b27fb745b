"""``gym eval show``: what was run, when, from what, and what came of it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nemo_gym.cli.arguments import Command, add_output_options
from nemo_gym.cli.eval_results import tell
from nemo_gym.cli.output import configure_logging, emit, emit_json, emit_table, format_pairs

_NONE: Final = "(not recorded)"
_SHORT: Final = 12


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a folder of results, or one file of rollouts")
    parser.add_argument("--config", action="store_true", help="print the run's configuration too, secrets masked")
    add_output_options(parser)


def _show(arguments: argparse.Namespace) -> int:
    from nemo_gym.environment.run_description import describe_run
    from nemo_gym.environment.stored_runs import find_results, load_run

    configure_logging(arguments.verbose)
    found = find_results(arguments.path)
    # a run that was killed at once has a record and no results yet
    runs = [load_run(paths, results_needed=not paths.run.is_file()) for paths in found]
    described = [describe_run(run) for run in runs]
    if arguments.json:
        emit_json(described if arguments.path.is_dir() else described[0])
        return 0
    for number, (run, description) in enumerate(zip(runs, described, strict=True)):
        if number:
            emit("")
        emit(f"{run.paths.rollouts}")
        _emit_run(description)
        if arguments.config:
            _emit_config(description["config"])
        tell(description["notices"])
    return 0


def _emit_run(run: Mapping[str, Any]) -> None:
    from nemo_gym.cli.run_report import emit_figures

    emit(format_pairs(_facts(run)))
    emit("")
    if run["segments"]:
        _emit_segments(run["segments"])
        emit("")
    if run["images"] is not None:
        _emit_images(run["images"]["images"])
        emit("")
    emit_figures(run["figures"])
    if run["missing_rollouts"]:
        emit(f"{run['missing_rollouts']} rollouts have not ended: the run did not get to its end.")
        emit("")
    emit(format_pairs({f"{name}:": path for name, path in run["files"].items()}))
    if run["unrecorded"]:
        emit("")
        emit("Not recorded")
        emit(format_pairs(run["unrecorded"]))


def _facts(run: Mapping[str, Any]) -> dict[str, str]:
    shard, plan, images, command = run["shard"], run["plan"], run["images"], run["command"]
    facts = {
        "benchmark": run["benchmark"] or _NONE,
        "model": _model(run["config"]),
        "status": run["status"],
        "command": shlex.join(command) if command else _NONE,
        "repeats": _NONE if run["num_repeats"] is None else str(run["num_repeats"]),
        "plan": _NONE if plan is None else _plan_line(plan),
        "config": _NONE if run["config_digest"] is None else f"digest {run['config_digest'][:_SHORT]}",
        "images": _NONE if images is None else f"{len(images['images'])}, digest {images['digest'][:_SHORT]}",
        "versions": _joined(run["versions"]),
        "host": _joined(run["host"]),
    }
    if shard is not None:
        facts["shard"] = f"{shard['index']} of {shard['count']}"
    if run["registry"] is not None:
        facts["servers"] = f"started elsewhere, registry {run['registry']}"
    return facts


def _model(config: Mapping[str, Any] | None) -> str:
    if config is None:
        return _NONE
    name, url = config.get("policy_model_name"), config.get("policy_base_url")
    if name is None and isinstance(served := config.get("policy_model"), Mapping):
        kinds = [kind for entry in served.values() if isinstance(entry, Mapping) for kind in entry]
        name = ", ".join(map(str, kinds)) or None
    return f"{name or _NONE}{f' at {url}' if url else ''}"


def _plan_line(plan: Mapping[str, Any]) -> str:
    made = f", made with commit {plan['commit'][:_SHORT]}" if plan["commit"] else ""
    selected = ", selected" if plan["selected"] is not None else ""
    return f"{plan['tasks']} tasks{selected}, digest {plan['digest'][:_SHORT]}{made}"


def _joined(values: Mapping[str, Any] | None) -> str:
    if not values:
        return _NONE
    return ", ".join(f"{name} {_flat(value)}" for name, value in values.items() if value is not None)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{name} {_flat(entry)}" for name, entry in value.items()) + ")"
    return str(value)


def _emit_segments(segments: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        [
            str(number),
            segment["started"],
            segment["ended"] or "",
            segment["status"],
            *(str(segment[count]) for count in ("scored", "failed", "attempts", "concurrency")),
            ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in segment["phases_s"].items()),
        ]
        for number, segment in enumerate(segments, start=1)
    ]
    headers = ["", "started", "ended", "status", "scored", "failed", "attempts", "at a time", "seconds"]
    emit_table(headers, rows, title="Segments")
    for number, segment in enumerate(segments, start=1):
        if segment["reason"]:
            emit(f"Segment {number}: {segment['reason']}")


def _emit_images(images: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        [
            image["name"],
            image["reference"],
            image["image_id"].removeprefix("sha256:")[:_SHORT],
            "" if image["packages"] is None else str(image["packages"]),
        ]
        for image in images
    ]
    emit_table(["image", "reference", "id", "packages"], rows, title="Images")


def _emit_config(config: Mapping[str, Any] | None) -> None:
    import yaml

    emit("")
    emit("Configuration")
    emit(_NONE if config is None else yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).rstrip())


COMMANDS = [
    Command(
        "show",
        "show what was run, when, from what, and what came of it",
        _add_arguments,
        _show,
        description=(
            "Show what the files of a run say of it: the benchmark, plan, images and versions, each time it was\n"
            "started or resumed and how long each phase took, and the figures at its end. What is not recorded is told."
        ),
        takes_overrides=False,
    ),
]
