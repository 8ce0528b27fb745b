"""Shards of a run, or parts of any, made into one run: the same files with the same figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemo_gym.config.comparison import config_digest, differing_keys
from nemo_gym.environment.stored_runs import StoredRun, find_one_result, load_parts
from nemo_gym.errors import ConfigError
from nemo_gym.eval.plan_difference import describe_difference, plan_digest
from nemo_gym.rollouts.merging import merge_results
from nemo_gym.rollouts.provenance import SCHEMA, RunRecord
from nemo_gym.rollouts.results import ResultPaths

_NAMES_SHOWN = 5


def aggregate_runs(
    sources: Sequence[Path],
    output: ResultPaths,
    *,
    command: Sequence[str] = (),
    allow_missing: bool = False,
    allow_differing: bool = False,
) -> list[str]:
    """Write the runs in ``sources`` to ``output`` as one; returns what a person should be told.

    ``ConfigError``: two hold the same rollout; a shard is not among them, unless ``allow_missing``; they were planned,
    configured or served otherwise, unless ``allow_differing`` (plans must be the same in any case). The verifiers' own
    metrics are not written: a verifier must be asked for those.
    """
    found = [find_one_result(path) for path in sources]
    if len({paths.rollouts.resolve() for paths in found}) < len(found):
        raise ConfigError("A file is given twice. Give each shard once.")
    gone = [str(paths.rollouts) for paths in found if not paths.rollouts.is_file()]
    if gone:
        raise ConfigError(
            f"There are no results at {', '.join(gone)}. Give the rollouts of each shard, PATH-i-of-n.jsonl, and leave "
            "out those that have not run."
        )
    runs = [load_parts(paths) for paths in found]
    notices = list(_missing_shards(runs, allow_missing=allow_missing))
    notices += _differences(runs, allow_differing=allow_differing)
    merged = merge_results(found, output)
    for part in ("plan", "config", "image_lock"):
        first = next((path for paths in found if (path := getattr(paths, part)).is_file()), None)
        if first is not None:
            shutil.copyfile(first, getattr(output, part))
    records = {str(run.paths.rollouts): run.record for run in runs if run.record is not None}
    if records:
        document = merged_record(records, command)
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        output.run.write_text(text, encoding="utf-8", errors="backslashreplace")
    return [*notices, *merged.notices]


def merged_record(record_of_file: Mapping[str, RunRecord], command: Sequence[str]) -> dict[str, Any]:
    """The record of runs made into one: their segments in the order of their starts. Pure."""
    records = list(record_of_file.values())
    segments = sorted(
        ((segment, record, number) for record in records for number, segment in enumerate(record.segments)),
        key=lambda entry: entry[0].started,
    )
    places = {(id(record), number): place for place, (_, record, number) in enumerate(segments)}
    timeline = []
    for record in records:
        for entry in record.timeline:
            place = places.get((id(record), entry.get("segment", 0)), entry.get("segment"))
            timeline.append({**entry, "segment": place})
    first = records[0]
    whole = RunRecord(
        run_id=first.run_id,
        benchmark=first.benchmark,
        command=list(command) or first.command,
        versions=first.versions,
        host=first.host,
        plan_digest=first.plan_digest,
        config_digest=first.config_digest,
        num_repeats=max(record.num_repeats for record in records),
        registry=first.registry,
        image_lock_digest=first.image_lock_digest,
        segments=[segment for segment, _, _ in segments],
        timeline=timeline,
    )
    parts = [
        {"file": file, "run_id": record.run_id, "shard": None if record.shard is None else asdict(record.shard)}
        for file, record in record_of_file.items()
    ]
    return {"schema": SCHEMA, **asdict(whole), "aggregated_from": parts}


def _missing_shards(runs: Sequence[StoredRun], *, allow_missing: bool) -> Iterator[str]:
    shards = [run.record.shard for run in runs if run.record is not None and run.record.shard is not None]
    if not shards:
        return
    counts = sorted({shard.count for shard in shards})
    if len(counts) > 1:
        raise ConfigError(f"These are shards of {' and of '.join(map(str, counts))}: they are not of one run.")
    given = {shard.index for shard in shards}
    missing = [f"{index}/{counts[0]}" for index in range(1, counts[0] + 1) if index not in given]
    if not missing:
        return
    named = ", ".join(missing[:_NAMES_SHOWN]) + (", ..." if len(missing) > _NAMES_SHOWN else "")
    if not allow_missing:
        raise ConfigError(
            f"{len(missing)} of {counts[0]} shards are not among these files: {named}. Give them too, or add "
            "--allow-missing to have the figures of those that are there."
        )
    yield f"{len(missing)} of {counts[0]} shards are missing ({named}): the figures are not those of the whole run."


def _differences(runs: Sequence[StoredRun], *, allow_differing: bool) -> Iterator[str]:
    planned = [run for run in runs if run.plan is not None]
    for run in planned[1:]:
        assert planned[0].plan is not None
        assert run.plan is not None
        if plan_digest(planned[0].plan) != plan_digest(run.plan):
            raise ConfigError(
                f"{run.paths.rollouts} is of another plan than {planned[0].paths.rollouts}: "
                f"{describe_difference(planned[0].plan, run.plan)}."
            )
    for sentence in (*_differing_configs(runs), *_differing_images(runs)):
        if not allow_differing:
            raise ConfigError(f"{sentence} Add --allow-differing to put them together all the same.")
        yield sentence


def _differing_configs(runs: Sequence[StoredRun]) -> Iterator[str]:
    configured = [run for run in runs if run.config is not None]
    for run in configured[1:]:
        first = configured[0].config
        assert first is not None
        assert run.config is not None
        if config_digest(first) != config_digest(run.config):
            keys = differing_keys(first, run.config)
            named = ", ".join(keys[:_NAMES_SHOWN]) + (", ..." if len(keys) > _NAMES_SHOWN else "")
            yield f"{run.paths.rollouts} is configured otherwise than {configured[0].paths.rollouts}: {named}."


def _differing_images(runs: Sequence[StoredRun]) -> Iterator[str]:
    locked = [run for run in runs if run.image_lock is not None]
    for run in locked[1:]:
        assert locked[0].image_lock is not None
        assert run.image_lock is not None
        if locked[0].image_lock.digest() != run.image_lock.digest():
            yield f"{run.paths.rollouts} ran from other images than {locked[0].paths.rollouts}."
