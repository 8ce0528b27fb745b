"""The plan of an evaluation, ``nemo-gym.eval-plan.v1``: which tasks there are, and a digest of what each receives.

The same plan always gives the same bytes, so that plans can be compared, stored and signed as files. Reading is
strict: a key that this version does not know is refused rather than dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from nemo_gym.errors import ConfigError

SCHEMA: Final = "nemo-gym.eval-plan.v1"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """A task's name: ``task_id`` is what ``TaskRunner.run_task`` takes, ``taskset`` the data set it stands in."""

    taskset: str
    task_id: str


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task, and the sha256 of what a run of it receives."""

    task_id: TaskId
    input_digest: str


@dataclass(frozen=True, slots=True)
class PlannedFrom:
    """The benchmark's name and the config files it was read from."""

    name: str
    config_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GymVersion:
    """Which Gym made the plan; ``commit`` is None outside a git checkout."""

    commit: str | None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """The tasks of one benchmark, each once, sorted by id; ``selected_task_ids`` is None for all of them."""

    benchmark: PlannedFrom
    gym: GymVersion
    selected_task_ids: tuple[str, ...] | None
    tasks: tuple[PlannedTask, ...]

    @property
    def schema(self) -> str:
        return SCHEMA

    def to_json(self) -> str:
        """The plan as JSON text, one task a line; the same plan gives the same text everywhere."""
        out = bytearray(b'{\n"schema":')
        out += orjson.dumps(SCHEMA)
        out += b',\n"benchmark":'
        out += orjson.dumps({"name": self.benchmark.name, "config_paths": list(self.benchmark.config_paths)})
        out += b',\n"gym":'
        gym = {"commit": self.gym.commit}
        out += orjson.dumps(gym if self.gym.version is None else {**gym, "version": self.gym.version})
        out += b',\n"selected_task_ids":'
        out += orjson.dumps(self.selected_task_ids)
        out += b',\n"tasks":['
        for number, task in enumerate(self.tasks):
            out += b",\n" if number else b"\n"
            name = {"taskset": task.task_id.taskset, "task_id": task.task_id.task_id}
            out += orjson.dumps({"task_id": name, "input_digest": task.input_digest})
        out += b"\n]\n}\n"
        return out.decode("utf-8")

    @classmethod
    def from_json(cls, text: str | bytes) -> EvalPlan:
        """The plan that ``to_json`` wrote; a ``ConfigError`` says what is wrong with any other text."""
        try:
            data = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"This is no eval plan: {error}. Needed: the JSON that `gym eval plan` writes.") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> EvalPlan:
        """The plan in ``data``, whose list of tasks is used up in the course."""
        plan = _object(data, "the plan", ("schema", "benchmark", "gym", "selected_task_ids", "tasks"))
        if plan["schema"] != SCHEMA:
            raise ConfigError(f"Eval plan: the schema must be {SCHEMA!r}; found {plan['schema']!r}.")
        benchmark = _object(plan["benchmark"], "benchmark", ("name", "config_paths"))
        gym = _object(plan["gym"], "gym", ("commit",), optional=("version",))
        selected = plan["selected_task_ids"]
        return cls(
            benchmark=PlannedFrom(
                name=_text(benchmark["name"], "benchmark.name"),
                config_paths=_texts(benchmark["config_paths"], "benchmark.config_paths"),
            ),
            gym=GymVersion(
                commit=_text_or_none(gym["commit"], "gym.commit"),
                version=_text_or_none(gym.get("version"), "gym.version"),
            ),
            selected_task_ids=None if selected is None else _texts(selected, "selected_task_ids"),
            tasks=_parse_tasks(plan["tasks"]),
        )


def build_plan(
    benchmark: PlannedFrom,
    gym: GymVersion,
    tasks: Iterable[PlannedTask],
    selected_task_ids: Sequence[str] | None = None,
) -> EvalPlan:
    """The plan of these tasks; neither their order nor that of the selection makes a difference."""
    return EvalPlan(
        benchmark=benchmark,
        gym=gym,
        selected_task_ids=None if selected_task_ids is None else tuple(sorted(set(selected_task_ids))),
        tasks=tuple(sorted(tasks, key=lambda task: task.task_id.task_id)),
    )


def _parse_tasks(entries: Any) -> tuple[PlannedTask, ...]:
    if not isinstance(entries, list):
        raise ConfigError(f"Eval plan: tasks must be a list; found {type(entries).__name__}.")
    tasksets: dict[str, str] = {}
    previous: str | None = None
    # Each parsed entry takes the place of the dict it came from, so that both never exist for all of them.
    for number, entry in enumerate(entries):
        where = f"tasks[{number}]"
        task = _object(entry, where, ("task_id", "input_digest"))
        name = _object(task["task_id"], f"{where}.task_id", ("taskset", "task_id"))
        task_id = _text(name["task_id"], f"{where}.task_id.task_id")
        taskset = _text(name["taskset"], f"{where}.task_id.taskset")
        digest = task["input_digest"]
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ConfigError(f"Eval plan: {where}.input_digest must be 64 hex digits; found {digest!r:.80}.")
        if previous is not None and task_id <= previous:
            raise ConfigError(
                f"Eval plan: tasks must be sorted by id, each id once; {where} is {task_id!r} after {previous!r}."
            )
        previous = task_id
        entries[number] = PlannedTask(TaskId(tasksets.setdefault(taskset, taskset), task_id), digest)
    return tuple(entries)


def _object(value: Any, where: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"Eval plan: {where} must be a JSON object; found {type(value).__name__}.")
    missing = [key for key in keys if key not in value]
    if missing:
        raise ConfigError(f"Eval plan: {where} lacks {', '.join(missing)}.")
    if len(value) > len(keys):
        unknown = sorted(str(key) for key in value if key not in keys and key not in optional)
        if unknown:
            raise ConfigError(
                f"Eval plan: {where} has keys that {SCHEMA} does not know: {', '.join(unknown)}. It knows "
                f"{', '.join((*keys, *optional))}."
            )
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"Eval plan: {where} must be a text; found {type(value).__name__}.")
    return value


def _text_or_none(value: Any, where: str) -> str | None:
    return None if value is None else _text(value, where)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"Eval plan: {where} must be a list of texts; found {type(value).__name__}.")
    return tuple(_text(item, f"{where}[{number}]") for number, item in enumerate(value))
