"""The rewards of stored rollouts, computed anew by their verifiers; no model answers anything again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

import orjson
import tenacity

from nemo_gym.rollouts.journal import Journal
from nemo_gym.rollouts.replies import BAD_REPLY, Failure, Outcome, find_reward
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.rows import ATTEMPT_INDEX, ROLLOUT_INDEX, TASK_INDEX
from nemo_gym.rollouts.stored import NameTask, StoredLine, agent_of, checked_key, iter_objects
from nemo_gym.rollouts.verification import Verifier, VerifierClient

MAX_ATTEMPTS: Final = 3
NO_RESPONSE: Final = "no_response"
_TOLERANCE: Final = 1e-9
_BOOKKEEPING: Final = "_ng_"

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rollout verified again. ``fields`` are what the verifier now says otherwise beside the reward.

    ``before`` is None where the stored result has no reward; ``after`` is None when there is a ``failure`` instead.
    """

    task_index: int
    repeat: int
    task: str
    before: float | None
    after: float | None
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    failure: Failure | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the reward is another one."""
        if self.after is None:
            return False
        return self.before is None or abs(self.after - self.before) > _TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        found: dict[str, Any] = {"task": self.task, "repeat": self.repeat, "before": self.before, "after": self.after}
        if self.failure is not None:
            reason = f"server {self.failure.server!r} {self.failure.reason}"
            return {**found, "failure_class": self.failure.failure_class, "reason": reason}
        return {**found, "fields": {name: list(values) for name, values in self.fields.items()}}


class Reverification:
    """Verifies the results in ``paths`` again.

    Rows are those of the materialized inputs; without such a file the replies stand for them, which hold the row too.
    ``output`` takes the new results, the file of failures included; None writes nothing.
    """

    def __init__(
        self,
        paths: ResultPaths,
        verifiers: Mapping[str, Verifier],
        name_task: NameTask,
        *,
        output: ResultPaths | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._paths = paths
        self._verifiers = verifiers
        self._name_task = name_task
        self._output = output
        self._redact = redact
        self._rows: dict[Key, tuple[int, int]] = {}
        self.notices: list[str] = []

    async def check(self, client: VerifierClient) -> None:
        """``ConfigError`` when a verifier cannot verify again."""
        for verifier in {verifier.name: verifier for verifier in self._verifiers.values()}.values():
            await client.check_reverifies(verifier)

    async def run(self, client: VerifierClient, concurrency: int, on_verdict: Callable[[Verdict], None]) -> None:
        """Verify every result, ``concurrency`` at a time, and tell each verdict as it comes."""
        inputs = self._open_inputs()
        rollouts = Journal(self._output.rollouts) if self._output is not None else None
        failures = Journal(self._output.failures) if self._output is not None else None
        try:
            lines = iter_objects(self._paths.rollouts, self.notices)

            async def work() -> None:
                for line in lines:
                    on_verdict(await self._verify(client, line, inputs, rollouts, failures))

            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
            for journal in (rollouts, failures):
                if journal is not None:
                    journal.finish()
        finally:
            for journal in (rollouts, failures):
                if journal is not None:
                    journal.close()
            if inputs is not None:
                inputs.close()

    def _open_inputs(self) -> IO[bytes] | None:
        path = self._paths.materialized_inputs
        if not path.is_file():
            self.notices.append(
                f"{path} is not there: the rows are taken from the replies, which a verifier may have added to."
            )
            return None
        for line in iter_objects(path, self.notices):
            self._rows[checked_key(line, path)] = line.place, line.length
        return path.open("rb")

    async def _verify(
        self,
        client: VerifierClient,
        line: StoredLine,
        inputs: IO[bytes] | None,
        rollouts: Journal | None,
        failures: Journal | None,
    ) -> Verdict:
        stored = line.record
        key = checked_key(line, self._paths.rollouts)
        row = self._row_of(key, stored, inputs)
        before, task = find_reward(stored), self._name_task({**stored, **row})
        verifier = self._verifiers[agent_of(stored)]
        outcome = await self._ask(client, verifier, {**row, **_bookkeeping(stored)}, stored.get("response"))
        if outcome.failure is not None or outcome.reply is None:
            failure = outcome.failure or Failure(BAD_REPLY, "gave no reply.", verifier.name)
            if failures is not None:
                failures.add((*key, 0), self._failure_record(stored, failure))
            return Verdict(*key, task, before, None, failure=failure)
        reply = {name: value for name, value in outcome.reply.items() if not name.startswith(_BOOKKEEPING)}
        if rollouts is not None:
            kept = {"agent_ref": stored["agent_ref"]} if "agent_ref" in stored else {}
            rollouts.add(key, {**reply, **kept, **_bookkeeping(stored)})
        return Verdict(*key, task, before, outcome.reward, _differing_fields(stored, reply, row))

    def _row_of(self, key: Key, stored: Mapping[str, Any], inputs: IO[bytes] | None) -> dict[str, Any]:
        place = self._rows.get(key)
        if inputs is None or place is None:
            left_out = ("reward", "response")
            return {name: value for name, value in stored.items() if name not in left_out}
        inputs.seek(place[0])
        found: dict[str, Any] = json.loads(inputs.read(place[1]))
        return found

    async def _ask(self, client: VerifierClient, verifier: Verifier, row: Mapping[str, Any], response: Any) -> Outcome:
        if not isinstance(response, Mapping):
            reason = "was not asked: the stored result has no response."
            return Outcome(failure=Failure(NO_RESPONSE, reason, verifier.name))
        body = _encoded({**row, "response": response})
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda outcome: outcome.failure is not None and outcome.failure.retryable),
            stop=tenacity.stop_after_attempt(MAX_ATTEMPTS),
            wait=tenacity.wait_exponential(multiplier=0.25, max=10) + tenacity.wait_random(0, 0.25),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else None,
        )
        found: Outcome = await attempts(client.verify, verifier, body)
        return found

    def _failure_record(self, stored: Mapping[str, Any], failure: Failure) -> dict[str, Any]:
        identity = {name: stored[name] for name in ("agent_ref", TASK_INDEX, ROLLOUT_INDEX) if name in stored}
        return {
            **identity,
            **_bookkeeping(stored),
            ATTEMPT_INDEX: stored.get(ATTEMPT_INDEX, 0),
            "failure_class": failure.failure_class,
            "server": failure.server,
            "status": failure.status,
            "reason": self._redact(failure.reason),
            "body_tail": self._redact(failure.body_tail),
            "final": True,
        }


def replies_of(paths: ResultPaths, agent: str, notices: list[str]) -> Iterator[bytes]:
    """The lines of a rollouts file that came from an agent, as they stand there; an empty name means all."""
    for line in iter_objects(paths.rollouts, notices):
        if not agent or agent_of(line.record) == agent:
            yield _encoded(line.record)


def agents_in(paths: ResultPaths, notices: list[str]) -> set[str]:
    """The agents that the results in a file came from."""
    return {agent_of(line.record) for line in iter_objects(paths.rollouts, notices)}


def _differing_fields(
    stored: Mapping[str, Any], reply: Mapping[str, Any], row: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The single values beside the reward that the verifier gives otherwise than before."""
    names = [name for name in {**stored, **reply} if not name.startswith(_BOOKKEEPING)]
    return {
        name: (stored.get(name), reply.get(name))
        for name in names
        if name not in row
        and name not in ("reward", "response")
        and stored.get(name) != reply.get(name)
        and all(isinstance(value, str | int | float | None) for value in (stored.get(name), reply.get(name)))
    }


def _bookkeeping(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a rollout from others, and how long it took."""
    return {name: value for name, value in stored.items() if name.startswith(_BOOKKEEPING)}


def _encoded(value: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):  # half a character, or a number of more than 64 bits
        return json.dumps(value).encode()
