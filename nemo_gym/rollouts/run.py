"""A whole run: every row once, so many at a time, infrastructure failures tried again, answers never."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tenacity

from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.registry_client import RegistryAddress
from nemo_gym.rollouts.replies import Failure, Outcome
from nemo_gym.rollouts.rows import attempt_of, row_key

MAX_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Tried:
    """Attempts of earlier segments at one rollout: the number of the next, and how many of them count to the limit."""

    next_number: int = 0
    counted: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one rollout. ``final``: no further attempt follows, so it decides the rollout."""

    row: Mapping[str, Any]
    number: int
    outcome: Outcome
    elapsed_s: float
    final: bool


class _RunEnds(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


async def run_rows(
    helper: RolloutCollectionHelper,
    registry: RegistryAddress,
    rows: Sequence[Mapping[str, Any]],
    *,
    run_id: str,
    concurrency: int,
    on_attempt: Callable[[Attempt], None],
    max_attempts: int = MAX_ATTEMPTS,
    tried: Mapping[tuple[int, ...], Tried] | None = None,
    drain: asyncio.Event | None = None,
) -> Failure | None:
    """Run every row, ``concurrency`` at a time, and report each attempt as it ends.

    A failed rollout never ends the run. A dead server does, at once: its failure is returned, and what was in
    flight is given up. None: every row was run, or ``drain`` was set: from then on no further attempt begins, and
    those in flight come to their end. ``tried`` are the attempts of earlier segments.
    """
    pending = iter(rows)
    one_row = _RowRunner(helper, registry, run_id, on_attempt, max_attempts, tried or {}, drain or asyncio.Event())
    try:
        async with helper.connected(registry), asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(rows))):
                group.create_task(one_row.run_all(pending))
    except ExceptionGroup as ended:
        first = ended.exceptions[0]
        if isinstance(first, _RunEnds):
            return first.failure
        raise first from None
    return None


class _RowRunner:
    def __init__(
        self,
        helper: RolloutCollectionHelper,
        registry: RegistryAddress,
        run_id: str,
        on_attempt: Callable[[Attempt], None],
        max_attempts: int,
        tried: Mapping[tuple[int, ...], Tried],
        drain: asyncio.Event,
    ) -> None:
        self._helper = helper
        self._registry = registry
        self._run_id = run_id
        self._on_attempt = on_attempt
        self._max_attempts = max_attempts
        self._tried = tried
        self._drain = drain

    async def run_all(self, rows: Iterator[Mapping[str, Any]]) -> None:
        while not self._drain.is_set():
            row = next(rows, None)
            if row is None:
                return
            outcome = await self._run_with_retries(row)
            if outcome.failure is not None and outcome.failure.ends_the_run:
                raise _RunEnds(outcome.failure)

    async def _run_with_retries(self, row: Mapping[str, Any]) -> Outcome:
        before = self._tried.get(row_key(row), Tried())
        allowed = max(1, self._max_attempts - before.counted)
        outcome = await self._attempt(row, before.next_number, is_last=allowed == 1)
        if allowed == 1 or not _worth_another_attempt(outcome):
            return outcome
        # only now: most rollouts need none of it
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(_worth_another_attempt),
            stop=lambda state: self._drain.is_set() or state.attempt_number >= allowed,
            wait=tenacity.wait_exponential(multiplier=0.25, max=10) + tenacity.wait_random(0, 0.25),
            sleep=self._sleep,
            retry_error_callback=_last_outcome,
        )
        made = 0

        async def once() -> Outcome:
            nonlocal outcome, made
            if made and not self._drain.is_set():
                outcome = await self._attempt(row, before.next_number + made, is_last=made + 1 == allowed)
            made += 1
            return outcome

        return await attempts(once)

    async def _sleep(self, seconds: float) -> None:
        """A pause that the end of the run cuts short."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drain.wait(), seconds)

    async def _attempt(self, row: Mapping[str, Any], number: int, *, is_last: bool) -> Outcome:
        sent = attempt_of(row, number, self._run_id)
        started = time.monotonic()
        outcome = await self._helper.run_row(self._registry, sent)
        elapsed_s = time.monotonic() - started
        final = is_last or not _worth_another_attempt(outcome)
        self._on_attempt(Attempt(sent, number, outcome, elapsed_s, final))
        return outcome


def _worth_another_attempt(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.retryable and not outcome.failure.ends_the_run


def _last_outcome(state: tenacity.RetryCallState) -> Outcome:
    if state.outcome is None:
        raise RuntimeError("tenacity gave up before the first attempt")
    outcome: Outcome = state.outcome.result()
    return outcome
