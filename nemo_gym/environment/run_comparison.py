"""Two stored runs compared: their rewards task by task, and what differs in how they came about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.config.comparison import differing_values
from nemo_gym.environment.stored_runs import StoredRun, TaskInput, read_inputs
from nemo_gym.rollouts.comparison import Comparison, compare


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that the runs do not share, as JSON; None where a run does not have it."""

    key: str
    first: str | None
    second: str | None

    def to_dict(self) -> dict[str, str | None]:
        """As JSON carries it."""
        return {"key": self.key, "first": self.first, "second": self.second}


@dataclass(frozen=True, slots=True)
class RunComparison:
    """``settings`` are what may explain a difference; ``unknown`` says in sentences what could not be compared."""

    comparison: Comparison
    settings: tuple[Difference, ...]
    unknown: tuple[str, ...]


def compare_runs(first: StoredRun, second: StoredRun) -> RunComparison:
    """Compare two runs, the second seen from the first.

    Tasks are the same when they have the same id and ask the same. That is told by their inputs where both runs kept
    them, so that a run at another temperature is still of the same tasks, else by the digests of their plans.
    """
    inputs = tuple(read_inputs(run.paths, run.results.notices) for run in (first, second))
    unknown: list[str] = []
    if all(inputs):
        questions = tuple(_questions(side) for side in inputs)
    else:
        digests = tuple(_digests(run) for run in (first, second))
        questions = digests if all(digests) else ({}, {})
        if not all(digests):
            unknown.append("Whether tasks of one id ask the same is not known: a run kept neither inputs nor plan.")
    comparison = compare(first.results, second.results, *questions)
    settings = [*_differing_records(first, second), *_differing_requests(*inputs)]
    if first.config is not None and second.config is not None:
        found = differing_values(first.config, second.config)
        settings += [Difference(key, old, new) for key, (old, new) in found.items()]
    else:
        unknown.append("Whether the runs' configurations differ is not known: a run has kept none.")
    return RunComparison(comparison, tuple(settings), tuple(unknown))


def _questions(inputs: Mapping[str, TaskInput]) -> dict[str, object]:
    return {task: found.question for task, found in inputs.items()}


def _digests(run: StoredRun) -> dict[str, object]:
    if run.plan is None:
        return {}
    return {task.task_id.task_id: task.input_digest for task in run.plan.tasks}


def _differing_records(first: StoredRun, second: StoredRun) -> list[Difference]:
    pairs = {
        "benchmark": (first.benchmark, second.benchmark),
        "images": (_images(first), _images(second)),
        "nemo_gym": (_version(first), _version(second)),
    }
    return [
        Difference(key, json.dumps(old), json.dumps(new))
        for key, (old, new) in pairs.items()
        if old is not None and new is not None and old != new
    ]


def _images(run: StoredRun) -> str | None:
    return None if run.image_lock is None else run.image_lock.digest()[:12]


def _version(run: StoredRun) -> Any:
    return None if run.record is None else run.record.versions.get("nemo_gym")


def _differing_requests(first: Mapping[str, TaskInput], second: Mapping[str, TaskInput]) -> list[Difference]:
    """How the runs' requests differ beside the question: in temperature, say."""
    found: dict[tuple[str, str], None] = {}
    for task, asked in first.items():
        other = second.get(task)
        if other is not None and other.settings != asked.settings:
            found[asked.settings, other.settings] = None
    differences: dict[Difference, None] = {}
    for old_text, new_text in found:
        old, new = json.loads(old_text), json.loads(new_text)
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                difference = Difference(f"request: {key}", _json(old, key), _json(new, key))
                differences[difference] = None
    return list(differences)


def _json(settings: Mapping[str, Any], key: str) -> str | None:
    return json.dumps(settings[key], sort_keys=True) if key in settings else None
