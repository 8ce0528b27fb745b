"""Collation: the rows that a prepare script wrote become rows that an agent can run. Pure.

A collated row is the source row with its ``responses_create_params`` finished, the agent that runs it
(``agent_ref``), and two bookkeeping keys: ``_ng_task_index``, its position in the source, and ``_ng_rollout_index``,
which of its repeats it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nemo_gym.config.task_ids import task_id_of_row
from nemo_gym.errors import ConfigError
from nemo_gym.eval.canonical_json import read_canonical
from nemo_gym.eval.eval_plan import PlannedTask, TaskId
from nemo_gym.eval.prompts import PromptTemplate

PARAMS: Final = "responses_create_params"
AGENT_REF: Final = "agent_ref"
TASK_INDEX: Final = "_ng_task_index"
ROLLOUT_INDEX: Final = "_ng_rollout_index"
_BOOKKEEPING: Final = "_ng_"
_AGENT_TYPE: Final = "responses_api_agents"


@dataclass(frozen=True, slots=True)
class RowSource:
    """What rows of one data set have in common. ``where`` names the data set in messages.

    ``default_params`` fill in what a row's ``responses_create_params`` leave out; ``forced_params`` win over both.
    ``agents`` are the agents a row may name for itself; a row that names none is run by ``agent_name``.
    """

    name: str
    agent_name: str
    where: str
    num_repeats: int = 1
    prompt: PromptTemplate | None = None
    default_params: Mapping[str, Any] = field(default_factory=dict)
    forced_params: Mapping[str, Any] = field(default_factory=dict)
    agents: frozenset[str] = frozenset()
    agent_ref: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        # One object for all rows: at a million rows, one each would cost more memory than their texts.
        object.__setattr__(self, "agent_ref", {"type": _AGENT_TYPE, "name": self.agent_name})


@dataclass(frozen=True, slots=True)
class CollatedRow:
    """One source row, ready to run: without bookkeeping keys in ``row``, and as canonical JSON in ``payload``."""

    task_id: str
    position: int
    row: dict[str, Any]
    payload: bytes

    def repeats(self, num_repeats: int) -> Iterator[dict[str, Any]]:
        """The row once for each repeat. What is nested in them is shared between them."""
        for index in range(num_repeats):
            yield {**self.row, TASK_INDEX: self.position, ROLLOUT_INDEX: index}

    def lines(self, num_repeats: int) -> Iterator[bytes]:
        """The same rows as lines of a JSONL file."""
        head = self.payload[:-1]
        for index in range(num_repeats):
            yield b'%b,"%b":%d,"%b":%d}\n' % (head, _TASK_KEY, self.position, _ROLLOUT_KEY, index)


_TASK_KEY: Final = TASK_INDEX.encode()
_ROLLOUT_KEY: Final = ROLLOUT_INDEX.encode()


def collate(lines: Iterable[bytes], source: RowSource, first_position: int = 0) -> Iterator[CollatedRow]:
    """The rows of a JSONL file, collated one by one; blank lines are passed over.

    ``first_position`` is the number of rows in the data sets before this one. A ``ConfigError`` names the line.
    """
    position = first_position
    for number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        try:
            yield _collated(line, source, position)
        except ConfigError as error:
            raise ConfigError(f"{source.where}, line {number}: {error}") from None
        position += 1


def _collated(line: bytes, source: RowSource, position: int) -> CollatedRow:
    try:
        row, payload = read_canonical(line, lambda value: _finished(value, source))
    except RecursionError:
        raise ConfigError("the row is nested too deeply.") from None
    except ValueError as error:
        raise ConfigError(f"this is no JSON: {error}. Needed: one JSON object a line, in UTF-8.") from None
    except TypeError as error:
        raise ConfigError(f"the row cannot be written as JSON: {error}.") from None
    return CollatedRow(task_id_of_row(row, position), position, row, payload)


def _finished(row: Any, source: RowSource) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ConfigError(f"a row must be a JSON object; found {type(row).__name__}.")
    # Bookkeeping of an earlier run says nothing about this one.
    for key in [key for key in row if key.startswith(_BOOKKEEPING)]:
        del row[key]
    row[PARAMS] = _params(row, source)
    row[AGENT_REF] = source.agent_ref if row.get(AGENT_REF) is None else _own_agent(row[AGENT_REF], source)
    return row


def _params(row: dict[str, Any], source: RowSource) -> dict[str, Any]:
    own = row.get(PARAMS)
    if own is None:
        own = {}
    elif not isinstance(own, dict):
        raise ConfigError(f"{PARAMS} must be an object; found {type(own).__name__}.")
    params = {**source.default_params, **own}
    if source.prompt is not None:
        if own.get("input") is not None:
            raise ConfigError(
                f"the row already carries {PARAMS}.input, and the prompt config {source.prompt.where} would replace "
                "it. Remove prompt_config from the data set, or prepare rows without input."
            )
        params["input"] = source.prompt.input_for(row)
    params.update(source.forced_params)
    if not params.get("input"):
        raise ConfigError(
            f"the row has nothing to ask: {PARAMS}.input is missing or empty, and the data set has no prompt_config. "
            "Write the input in the prepare script, or set prompt_config to a YAML file with a 'user' template."
        )
    return params


def _own_agent(agent_ref: Any, source: RowSource) -> dict[str, Any]:
    name = agent_ref.get("name") if isinstance(agent_ref, dict) else None
    if not isinstance(name, str) or agent_ref.get("type", _AGENT_TYPE) != _AGENT_TYPE:
        raise ConfigError(f"{AGENT_REF} must be {{type: {_AGENT_TYPE}, name: <agent>}}; found {agent_ref!r:.120}.")
    if name != source.agent_name and name not in source.agents:
        known = ", ".join(sorted({source.agent_name, *source.agents}))
        raise ConfigError(f"{AGENT_REF} names the agent {name!r}, which the config does not have. It has {known}.")
    return source.agent_ref if name == source.agent_name else {**agent_ref, "type": _AGENT_TYPE}


class PlannedTasks:
    """The tasks of the rows added so far, each once, with its digest.

    Rows that repeat a task must be identical apart from their bookkeeping; then they are the same task.
    """

    def __init__(self) -> None:
        # Pairs of texts, which cost the garbage collector nothing, until there is a plan to make of them.
        self._tasks: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._tasks

    def __iter__(self) -> Iterator[PlannedTask]:
        for task_id, (taskset, digest) in self._tasks.items():
            yield PlannedTask(TaskId(taskset, task_id), digest)

    def ids(self) -> list[str]:
        return list(self._tasks)

    def add(self, row: CollatedRow, taskset: str) -> None:
        """Take in one row; a ``ConfigError`` when it differs from an earlier row of the same task."""
        digest = hashlib.sha256(row.payload).hexdigest()
        known = self._tasks.setdefault(row.task_id, (taskset, digest))
        if known[1] != digest:
            raise ConfigError(
                f"Data set {taskset!r}: the row at position {row.position} has the task id {row.task_id!r} like an "
                "earlier row, and differs from it. Rows that repeat a task must be identical; give different tasks "
                "different ids, and use num_repeats for repeats."
            )
