"""Rows on their way to an agent: rollout ids, repeats and attempts. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from nemo_gym.errors import ConfigError

TASK_INDEX: Final = "_ng_task_index"
ROLLOUT_INDEX: Final = "_ng_rollout_index"
ATTEMPT_INDEX: Final = "_ng_attempt_index"
ROLLOUT_ID: Final = "_ng_rollout_id"
ELAPSED_S: Final = "_ng_elapsed_s"
AGENT_SERVER_TYPE: Final = "responses_api_agents"

_ROLLOUT_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def new_rollout_id() -> str:
    """A rollout id that no other call has, in this process or another."""
    return uuid.uuid4().hex


def check_rollout_id(rollout_id: object) -> str:
    """``rollout_id`` itself when it may stand in a route and a file name; else a ``ConfigError``."""
    if isinstance(rollout_id, str) and _ROLLOUT_ID_PATTERN.fullmatch(rollout_id):
        return rollout_id
    raise ConfigError(
        f"A rollout id must start with a letter or digit and go on with letters, digits, '.', '_' or '-'; "
        f"found {rollout_id!r}."
    )


def repeat_id(rollout_id: str, index: int, num_repeats: int) -> str:
    """The id of repeat ``index``: the id itself when there is one repeat only, else ``<id>-r<index>``."""
    return rollout_id if num_repeats == 1 else f"{rollout_id}-r{index}"


def find_agent_name(row: Mapping[str, Any]) -> str | None:
    """The name of the agent that runs this row, or None when the row names none rightly."""
    agent_ref = row.get("agent_ref")
    if not isinstance(agent_ref, Mapping):
        return None
    name = agent_ref.get("name")
    if agent_ref.get("type", AGENT_SERVER_TYPE) != AGENT_SERVER_TYPE or not isinstance(name, str) or not name:
        return None
    return name


def find_row_fault(row: object) -> str | None:
    """What keeps this row from being run, as the end of a sentence about it; None when nothing does."""
    if not isinstance(row, Mapping):
        return f"must be a mapping of keys to values; it is a {type(row).__name__}"
    params = row.get("responses_create_params")
    if not isinstance(params, Mapping):
        return (
            "needs responses_create_params, a mapping with the model's input; "
            f"{'it is missing' if params is None else f'found a {type(params).__name__}'}"
        )
    if find_agent_name(row) is None:
        return (
            f"needs agent_ref: {{type: {AGENT_SERVER_TYPE}, name: <agent>}}, which says who runs it; "
            f"found {row.get('agent_ref')!r}"
        )
    return None


def without_bookkeeping(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row apart from its ``_ng_*`` keys: what makes two rows the same task."""
    return {key: value for key, value in row.items() if not str(key).startswith("_ng_")}


def repeated_rows(first_rows: Iterable[Mapping[str, Any]], num_repeats: int) -> list[dict[str, Any]]:
    """Each row ``num_repeats`` times, its repeats numbered from 0 and standing together."""
    return [{**row, ROLLOUT_INDEX: index} for row in first_rows for index in range(num_repeats)]


def row_key(row: Mapping[str, Any]) -> tuple[int, int]:
    """Task and rollout index of a row or result: what it is sorted and told apart by."""
    return int(row[TASK_INDEX]), int(row[ROLLOUT_INDEX])


def attempt_of(row: Mapping[str, Any], attempt: int, run_id: str) -> dict[str, Any]:
    """The row as its ``attempt``-th attempt, with a rollout id that no other attempt of the run has."""
    task_index, rollout_index = row_key(row)
    suffix = "" if attempt == 0 else f"-a{attempt}"
    rollout_id = f"{run_id}-t{task_index}-r{rollout_index}{suffix}"
    return {**row, ATTEMPT_INDEX: attempt, ROLLOUT_ID: rollout_id}
