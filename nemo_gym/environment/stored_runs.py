"""Runs read back from their folder: results, and where they come from.

Nothing but the rollouts themselves must be there: runs of earlier versions and of other implementations of the protocol
lack some of the files, and ``StoredRun.unrecorded`` says which.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from nemo_gym.config.task_ids import task_id_of_row
from nemo_gym.config.yaml_files import parse_yaml_dict
from nemo_gym.containers.image_lock import ImageLock, read_lock
from nemo_gym.errors import ConfigError
from nemo_gym.eval.canonical_json import dumps_canonical
from nemo_gym.eval.eval_plan import EvalPlan
from nemo_gym.rollouts.provenance import RunRecord, parse_run_record
from nemo_gym.rollouts.report import RunTally, report
from nemo_gym.rollouts.results import SIDE_FILES, ResultPaths
from nemo_gym.rollouts.rows import TASK_INDEX, without_bookkeeping
from nemo_gym.rollouts.stored import StoredResults, iter_objects, read_stored

T = TypeVar("T")
_RUN_FILE: Final = "_run.json"
_QUESTION_PARAMS: Final = ("input", "instructions", "tools")
_PARAMS: Final = "responses_create_params"


@dataclass
class StoredRun:
    """One run's results and its record; a part that was not recorded, or cannot be read, is None.

    ``unrecorded`` says of each such part why, by the name of its file. ``aggregates`` are the verifiers' own metrics,
    an entry for each agent.
    """

    paths: ResultPaths
    results: StoredResults
    record: RunRecord | None = None
    plan: EvalPlan | None = None
    config: dict[str, Any] | None = None
    image_lock: ImageLock | None = None
    aggregates: list[dict[str, Any]] | None = None
    unrecorded: dict[str, str] = field(default_factory=dict)

    @property
    def benchmark(self) -> str | None:
        """The benchmark's name as ``--benchmark`` takes it, where the run says which it was."""
        if self.record is not None:
            return self.record.benchmark
        return self.plan.benchmark.name if self.plan is not None else None

    def key_metrics(self) -> dict[str, Any]:
        """The verifiers' own metrics at the end of the run, as ``gym eval run`` shows them."""
        found: dict[str, Any] = {}
        for entry in self.aggregates or ():
            metrics = entry.get("key_metrics")
            found |= metrics if isinstance(metrics, Mapping) else {}
        return found

    def tally(self) -> RunTally:
        """The results as a run tallies them."""
        results = self.results
        total = results.expected if results.expected is not None else len(results.rollouts) + len(results.failures)
        tally = RunTally(total=total, name_task=name_task)
        tally.add_stored(results)
        return tally

    def figures(self) -> dict[str, Any]:
        """The figures that ``gym eval run`` gave at the end of the run."""
        return report(self.tally(), self.key_metrics())


class TaskInput(NamedTuple):
    """What a task asks (a sha256 over its row), and how it asks: the other parameters of its request, as JSON.

    The row counts without bookkeeping and without the agent that runs it.
    """

    question: bytes
    settings: str


def name_task(row: Mapping[str, Any]) -> str:
    """The task id of a collated row, or of a result of one."""
    return task_id_of_row(row, row[TASK_INDEX])


def find_results(path: Path) -> list[ResultPaths]:
    """The runs in a folder, by name; or the one whose rollouts, or whose ``_run.json``, the path names."""
    with _read_errors_told(path):
        return _find_results(path)


def _find_results(path: Path) -> list[ResultPaths]:
    if path.is_dir():
        names = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
        stems = {name.removesuffix(_RUN_FILE) for name in names if name.endswith(_RUN_FILE)}
        stems |= {
            name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl") and not name.endswith(SIDE_FILES)
        }
        if not stems:
            raise ConfigError(f"There are no results in {path}. `gym eval run --output PATH.jsonl` writes some.")
        return [ResultPaths(path / f"{stem}.jsonl") for stem in sorted(stems)]
    if path.name.endswith(_RUN_FILE):
        path = path.with_name(path.name.removesuffix(_RUN_FILE) + ".jsonl")
    for side in SIDE_FILES:
        rollouts = path.with_name(path.name.removesuffix(side) + ".jsonl")
        if path.name.endswith(side) and rollouts.is_file():
            raise ConfigError(f"{path} stands beside results, and holds none. Give {rollouts}.")
    return [ResultPaths(path)]


def find_one_result(path: Path) -> ResultPaths:
    """The run that a file or folder means; ``ConfigError`` when a folder holds several."""
    found = find_results(path)
    if len(found) > 1:
        listed = "\n".join(f"  {paths.rollouts}" for paths in found)
        raise ConfigError(f"{path} holds the results of {len(found)} runs; give one of them:\n{listed}")
    return found[0]


def read_run(path: Path) -> StoredRun:
    """The run that ``path`` (its rollouts file, its ``_run.json``, or a folder with one run) means."""
    return load_run(find_one_result(path))


def load_run(paths: ResultPaths, *, results_needed: bool = True) -> StoredRun:
    """The run at ``paths``. Results that are not there are none, if they are not needed."""
    with _read_errors_told(paths.rollouts):
        if results_needed or paths.rollouts.is_file():
            results = read_stored(paths, name_task)
        else:
            results = StoredResults(paths, notices=[f"{paths.rollouts} is not there: the run has written no result."])
        return load_parts(paths, results)


@contextlib.contextmanager
def _read_errors_told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror or error}.") from error


def load_parts(paths: ResultPaths, results: StoredResults | None = None) -> StoredRun:
    """What the files beside the rollouts at ``paths`` say, with ``results``, which are not read here."""
    run = StoredRun(paths, results or StoredResults(paths))
    load = _PartLoader(run.unrecorded)
    run.record = load(paths.run, lambda path: parse_run_record(path.read_bytes(), str(path)))
    run.plan = load(paths.plan, lambda path: EvalPlan.from_json(path.read_bytes()))
    run.config = load(paths.config, _read_config)
    run.image_lock = load(paths.image_lock, read_lock)
    run.aggregates = load(paths.aggregate_metrics, _read_aggregates)
    return run


class _PartLoader:
    def __init__(self, unrecorded: dict[str, str]) -> None:
        self._unrecorded = unrecorded

    def __call__(self, path: Path, read: Callable[[Path], T]) -> T | None:
        if not path.is_file():
            self._unrecorded[path.name] = "not there"
            return None
        try:
            return read(path)
        except (ConfigError, OSError, ValueError) as error:
            self._unrecorded[path.name] = f"cannot be read: {error}"
            return None


def read_inputs(paths: ResultPaths, notices: list[str]) -> dict[str, TaskInput]:
    """What each task asked, by its id; empty where the inputs were not kept."""
    found: dict[str, TaskInput] = {}
    if not paths.materialized_inputs.is_file():
        return found
    for line in iter_objects(paths.materialized_inputs, notices):
        if not isinstance(line.record.get(TASK_INDEX), int):
            raise ConfigError(f"{paths.materialized_inputs}, line {line.number}: needs {TASK_INDEX}.")
        task = name_task(line.record)
        if task not in found:
            found[task] = input_of(line.record)
    return found


def input_of(row: Mapping[str, Any]) -> TaskInput:
    """What a row asks, and how."""
    asked = without_bookkeeping(row)
    asked.pop("agent_ref", None)
    params = asked.get(_PARAMS)
    settings: dict[str, Any] = {}
    if isinstance(params, Mapping):
        settings = {key: value for key, value in params.items() if key not in _QUESTION_PARAMS and value is not None}
        asked[_PARAMS] = {key: params[key] for key in _QUESTION_PARAMS if params.get(key) is not None}
    text = sys.intern(_canonical(settings).decode("utf-8"))
    return TaskInput(hashlib.sha256(_canonical(asked)).digest(), text)


def _canonical(value: Any) -> bytes:
    try:
        return dumps_canonical(value)
    except (TypeError, UnicodeEncodeError, ValueError):  # half a character, say
        return json.dumps(value, sort_keys=True, default=str).encode()


def _read_config(path: Path) -> dict[str, Any]:
    return parse_yaml_dict(path.read_text(encoding="utf-8"), str(path))


def _read_aggregates(path: Path) -> list[dict[str, Any]]:
    entries = json.loads(path.read_bytes())
    if isinstance(entries, dict):
        entries = [entries]
    if not isinstance(entries, list):
        raise ConfigError("it holds no metrics")
    return [entry for entry in entries if isinstance(entry, dict)]
