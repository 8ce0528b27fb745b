"""A stored run as a document: what was run, when, from what, and what came of it."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

from nemo_gym.config.redaction import redact_config
from nemo_gym.containers.image_lock import ImageLock
from nemo_gym.environment.stored_runs import StoredRun
from nemo_gym.eval.plan_difference import plan_digest
from nemo_gym.rollouts.provenance import KILLED, RUNNING, RunRecord
from nemo_gym.rollouts.results import ResultPaths


def describe_run(run: StoredRun) -> dict[str, Any]:
    """Everything that the files of a run say of it, but its rollouts; None where nothing is recorded.

    ``status`` is that of the run's last segment: ``killed`` where it was running on this machine, and no process writes
    its files any more. Without a record it follows from its rollouts.
    """
    record, results = run.record, run.results
    if record is not None and _was_killed(run.paths, record):
        record.segments[-1].status = KILLED
    figures = {name: value for name, value in run.figures().items() if name != "rewards"}
    return {
        "benchmark": run.benchmark,
        "status": _status(run),
        "run_id": None if record is None else record.run_id,
        "command": None if record is None else record.command,
        "shard": None if record is None or record.shard is None else asdict(record.shard),
        "num_repeats": None if record is None else record.num_repeats,
        "registry": None if record is None else record.registry,
        "versions": None if record is None else record.versions,
        "host": None if record is None else record.host,
        "plan": _plan(run),
        "config_digest": None if record is None else record.config_digest,
        "config": None if run.config is None else redact_config(run.config),
        "images": _images(run.image_lock),
        "segments": [] if record is None else [asdict(segment) for segment in record.segments],
        "timeline": [] if record is None else record.timeline,
        "missing_rollouts": results.missing,
        "figures": figures,
        "files": {name: str(path) for name, path in run.paths.existing().items()},
        "unrecorded": run.unrecorded,
        "notices": list(dict.fromkeys(results.notices)),
    }


def _was_killed(paths: ResultPaths, record: RunRecord) -> bool:
    if not record.segments or record.segments[-1].status != RUNNING:
        return False
    return record.segments[-1].host.get("name") == platform.node() and not paths.is_being_written()


def _status(run: StoredRun) -> str:
    if run.record is not None and run.record.segments:
        return run.record.segments[-1].status
    if run.results.expected is None:
        return "unknown"
    return "finished" if not run.results.missing else "unfinished"


def _plan(run: StoredRun) -> dict[str, Any] | None:
    plan = run.plan
    if plan is None:
        return None
    selected = plan.selected_task_ids
    return {
        "digest": plan_digest(plan),
        "tasks": len(plan.tasks),
        "selected": None if selected is None else len(selected),
        "commit": plan.gym.commit,
        "config_paths": list(plan.benchmark.config_paths),
    }


def _images(lock: ImageLock | None) -> dict[str, Any] | None:
    if lock is None:
        return None
    images = [
        {
            "name": image.name,
            "reference": image.reference,
            "image_id": image.image_id,
            "context": image.context,
            "repo_digests": list(image.repo_digests),
            "packages": None if image.packages is None else len(image.packages),
        }
        for image in lock.images
    ]
    return {"digest": lock.digest(), "images": images}
