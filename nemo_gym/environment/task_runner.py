"""Single tasks of a planned benchmark, run on servers that are already running."""

from __future__ import annotations

import asyncio
import difflib
import logging
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nemo_gym.config.task_ids import task_id_of_row
from nemo_gym.config.token import token_of
from nemo_gym.errors import ConfigError, RolloutFailedError
from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.registry_client import RegistryAddress
from nemo_gym.rollouts.replies import Failure, Outcome, failure_error
from nemo_gym.rollouts.rows import (
    ROLLOUT_ID,
    ROLLOUT_INDEX,
    TASK_INDEX,
    check_rollout_id,
    find_row_fault,
    new_rollout_id,
    repeat_id,
    without_bookkeeping,
)

if TYPE_CHECKING:
    from nemo_gym.config.config_types import BaseServerConfig
    from nemo_gym.rollouts.records import RolloutRecord

logger = logging.getLogger(__name__)


@dataclass
class TaskResult:
    """A task's rollouts: one reward per repeat, and the agent's raw ``/run`` replies in the same order.

    The replies' keys are the servers' own and may change; ``rewards`` is what to build on.
    """

    task_id: str
    rewards: list[float]
    results: list[dict[str, Any]]


class TaskRunner:
    """Runs single tasks of collated rows on the servers behind a registry.

    ``registry_server`` says where that registry answers. Servers that other machines reach ask for a token: its
    ``token``, or where that is None the one in the environment variable ``NEMO_GYM_TOKEN``, is sent with every request.

    Making one checks and indexes the rows and talks to no one. Calls may run at the same time in one event loop,
    and a runner may be used from one event loop after another: it has connections open only while calls are.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], registry_server: BaseServerConfig) -> None:
        self._row_of_task = _first_row_of_each_task(rows)
        self._registry = _registry_address(registry_server)
        self._helper = RolloutCollectionHelper()
        self._ids_in_use: set[str] = set()
        self._ids_lock = threading.Lock()

    def task_ids(self) -> list[str]:
        """The tasks' ids, in the order of the rows."""
        return list(self._row_of_task)

    async def run_task(self, task_id: str, num_repeats: int = 1, rollout_id: str | None = None) -> TaskResult:
        """Run ``num_repeats`` rollouts of one task, all at the same time, and return their rewards in order.

        ``rollout_id`` names the rollouts to the servers: one rollout gets it as it is, several get
        ``<rollout_id>-r0``, ``-r1`` and so on. No two calls that run at the same time may share one; None makes a
        fresh one. Nothing is ever sent twice, and a rollout may take as long as it needs.

        Raises ``RolloutFailedError``, with the replies that did arrive, when a rollout gives no reward, within
        seconds when that is because a server has died; ``ConfigError`` for a task, number, id or registry that
        cannot be.
        """
        row = self._get_row(task_id)
        _check_num_repeats(num_repeats)
        base_id = new_rollout_id() if rollout_id is None else check_rollout_id(rollout_id)
        rows = [_with_rollout_id(dict(row), base_id, index, num_repeats) for index in range(num_repeats)]
        with self._holding_ids({base_id, *(str(repeat[ROLLOUT_ID]) for repeat in rows)}):
            outcomes = await self._run_rows(rows)
        return _task_result(task_id, outcomes)

    async def rollout_records(self, rollout_id: str) -> list[RolloutRecord]:
        """What the servers were asked in one rollout and answered, in the order of the times.

        ``rollout_id`` is the id as the servers got it: of several repeats, ``<rollout_id>-r0`` and so on. Servers
        record when they are served with ``observability_enabled=true``, and keep each the latest records only
        (``records_budget_mb``). Those of other makes have none.

        Raises ``ConfigError`` when nothing is known of the rollout, or nothing is recorded.
        """
        gathered = await self._helper.load_records(self._registry, check_rollout_id(rollout_id))
        for server, why in gathered.unasked.items():
            logger.info("no records of server %s: %s", server, why)
        return gathered.records

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Return once the registry answers and all its servers are ready; ``ConfigError`` after ``timeout_s``.

        For a process that starts before the servers and knows where their registry will be.
        """
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ConfigError(f"timeout_s must be a number of seconds above 0; found {timeout_s!r}.")
        await self._helper.wait_until_ready(self._registry, timeout_s if math.isfinite(timeout_s) else None)

    async def aclose(self) -> None:
        """Give up the calls that the running event loop still has open. The runner can be used again afterwards."""
        await self._helper.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _get_row(self, task_id: str) -> Mapping[str, Any]:
        row = self._row_of_task.get(task_id) if isinstance(task_id, str) else None
        if row is not None:
            return row
        near = difflib.get_close_matches(str(task_id), self._row_of_task, n=3)
        hint = f"Did you mean {', '.join(map(repr, near))}?" if near else "task_ids() lists those there are."
        found = repr(task_id) if isinstance(task_id, str) else f"{task_id!r}, which is no text"
        raise ConfigError(f"None of the {len(self._row_of_task)} tasks has the id {found}. {hint}")

    @contextmanager
    def _holding_ids(self, ids: set[str]) -> Iterator[None]:
        with self._ids_lock:
            taken = sorted(ids & self._ids_in_use)
            if taken:
                raise ConfigError(
                    f"Rollout id {taken[0]!r} is in use by a call that is still running. Give calls that run at "
                    "the same time different rollout ids, or none: each then gets a fresh one."
                )
            self._ids_in_use |= ids
        try:
            yield
        finally:
            with self._ids_lock:
                self._ids_in_use -= ids

    async def _run_rows(self, rows: Sequence[dict[str, Any]]) -> list[Outcome]:
        ended = await asyncio.gather(
            *(self._helper.run_row(self._registry, row) for row in rows), return_exceptions=True
        )
        outcomes = []
        for end in ended:
            if isinstance(end, BaseException):
                raise end
            outcomes.append(end)
        return outcomes


def _registry_address(server: BaseServerConfig) -> RegistryAddress:
    host, port = getattr(server, "host", None), getattr(server, "port", None)
    if not isinstance(host, str) or not host or not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigError(
            "registry_server must say where the registry answers, such as BaseServerConfig(host='127.0.0.1', "
            f"port=11000) or what serve_benchmark yields; found {server!r:.200}."
        )
    return RegistryAddress(host, port, getattr(server, "token", None) or token_of(os.environ))


def _check_num_repeats(num_repeats: int) -> None:
    if isinstance(num_repeats, bool) or not isinstance(num_repeats, int) or num_repeats < 1:
        raise ConfigError(f"num_repeats must be a whole number from 1 on; found {num_repeats!r}.")


def _task_result(task_id: str, outcomes: Sequence[Outcome]) -> TaskResult:
    """The result when every rollout has a reward; else the error for those that have none."""
    failures = [(index, outcome.failure) for index, outcome in enumerate(outcomes) if outcome.failure is not None]
    if failures:
        raise _task_error(task_id, failures, [outcome.reply for outcome in outcomes])
    return TaskResult(
        task_id=task_id,
        rewards=[outcome.reward for outcome in outcomes if outcome.reward is not None],
        results=[outcome.reply for outcome in outcomes if outcome.reply is not None],
    )


def _task_error(
    task_id: str, failures: Sequence[tuple[int, Failure]], replies: Sequence[dict[str, Any] | None]
) -> RolloutFailedError:
    # A dead server explains the failures beside it, so it is the one that is reported.
    index, failure = min(failures, key=lambda entry: (not entry[1].ends_the_run, entry[0]))
    return failure_error(failure, task_id=task_id, repeat=index, results=replies, failed=len(failures))


def _first_row_of_each_task(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Each task's id mapped to the first of its rows, in the order of the rows.

    Every row is checked, and a ``ConfigError`` names the first bad one by its number, counted from 1.
    """
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ConfigError(
            "TaskRunner needs the rows of a planned benchmark: TaskRunner(planned.rows, ...); found a "
            f"{type(rows).__name__}."
        )
    row_of_task: dict[str, Mapping[str, Any]] = {}
    number_of_task: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        fault = find_row_fault(row)
        if fault is not None:
            raise ConfigError(f"Row {number} {fault}.")
        task_id = _task_id(row, number)
        first = row_of_task.setdefault(task_id, row)
        first_number = number_of_task.setdefault(task_id, number)
        if first is not row and without_bookkeeping(first) != without_bookkeeping(row):
            raise ConfigError(
                f"Row {number} has the same task id as row {first_number}, {task_id!r}, and differs from it in "
                f"{_differing_keys(first, row)}. Rows that repeat a task must be the same apart from their "
                "_ng_* keys; different tasks need different ids."
            )
    return row_of_task


def _task_id(row: Mapping[str, Any], number: int) -> str:
    position = row.get(TASK_INDEX)
    if position is None:
        position = number - 1
    elif isinstance(position, bool) or not isinstance(position, int):
        raise ConfigError(f"Row {number} has {TASK_INDEX}={position!r}; it must be a whole number.")
    try:
        return task_id_of_row(row, position)
    except ConfigError as error:
        raise ConfigError(f"Row {number}: {error}") from error


def _differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    one, other = without_bookkeeping(first), without_bookkeeping(second)
    missing = object()
    return ", ".join(
        sorted(key for key in one.keys() | other.keys() if one.get(key, missing) != other.get(key, missing))
    )


def _with_rollout_id(row: dict[str, Any], rollout_id: str, index: int, num_repeats: int) -> dict[str, Any]:
    """The row as repeat ``index`` of ``num_repeats``, named after ``rollout_id``; ``row`` stays as it is."""
    return {**row, ROLLOUT_INDEX: index, ROLLOUT_ID: repeat_id(rollout_id, index, num_repeats)}
