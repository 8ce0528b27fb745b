"""What an agent's reply to ``/run`` means: a reward, or a failure and its class. Pure.

A reply is a rollout's result when it came with HTTP 2xx, is a JSON object, carries no failure marker and has a
finite number as its ``reward``. Everything else is a failure, and a failure is never a reward of 0.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from nemo_gym.errors import RolloutFailedError

HTTP_ERROR: Final = "http_error"
CONNECTION_LOST: Final = "connection_lost"
SERVER_DEAD: Final = "server_dead"
REGISTRY_UNREACHABLE: Final = "registry_unreachable"
BAD_REPLY: Final = "bad_reply"
NO_REWARD: Final = "no_reward"
MARKED_FAILED: Final = "marked_failed"

FAILURE_MARKERS: Final = (
    "_ng_failure_class",
    "_ng_no_persist",
    "_ng_failure_terminal",
    "_ng_failure_judge_error",
)

BODY_TAIL_CHARACTERS: Final = 2000
_ANSWERS_THAT_PASS: Final = frozenset({408, 425, 429})
"""Client errors that say "not now" rather than "not like this"."""
_REFUSALS: Final = frozenset(range(400, 500)) - _ANSWERS_THAT_PASS
"""What the same request is answered with again: a prompt that is too long, a wrong key, an unknown model."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A rollout without a reward. ``reason`` is a whole sentence; ``server`` the one that failed or was called.

    ``retryable``: another attempt may well succeed, since what failed is machinery and not the answer.
    """

    failure_class: str
    reason: str
    server: str
    status: int | None = None
    body_tail: str = ""
    retryable: bool = False

    @property
    def ends_the_run(self) -> bool:
        """Every further rollout would fail the same way."""
        return self.failure_class in (SERVER_DEAD, REGISTRY_UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One rollout's end: ``reply`` and ``reward``, or ``failure``."""

    reply: dict[str, Any] | None = None
    reward: float | None = None
    failure: Failure | None = None


def judge_reply(server: str, status: int, body: bytes) -> Outcome:
    """The outcome of a ``/run`` call that was answered."""
    if not 200 <= status < 300:
        culprit, behind = find_culprit(body)
        retryable = (status >= 500 or status in _ANSWERS_THAT_PASS) and behind not in _REFUSALS
        if culprit is None or culprit == server:
            return _failed(HTTP_ERROR, f"answered HTTP {status}.", server, status, body, retryable=retryable)
        reason = f"failed behind {server!r}, which answered HTTP {status}."
        return _failed(HTTP_ERROR, reason, culprit, status, body, retryable=retryable)
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return _failed(BAD_REPLY, "answered something that is not JSON.", server, status, body)
    if not isinstance(reply, dict):
        return _failed(BAD_REPLY, f"answered a JSON {_json_type(reply)}, not an object.", server, status, body)
    marked = [marker for marker in FAILURE_MARKERS if reply.get(marker)]
    if marked:
        return Outcome(reply=reply, failure=_marked_failure(reply, marked, server, status, body))
    reward = find_reward(reply)
    if reward is None:
        found = f"found {reply['reward']!r:.80}" if "reward" in reply else "it has no reward"
        reason = f"answered without a finite number as its reward: {found}."
        return Outcome(reply=reply, failure=_failure(NO_REWARD, reason, server, status, body))
    return Outcome(reply=reply, reward=reward)


def write_aggregate_body(stream: IO[bytes], replies: Iterable[bytes]) -> None:
    """The request to ``/aggregate_metrics`` over replies, each the JSON of one, written to a file and rewound.

    A hundred thousand replies are too much for memory.
    """
    stream.write(b'{"verify_responses":[')
    for number, reply in enumerate(replies):
        stream.write(b"," + reply if number else reply)
    stream.write(b"]}")
    stream.seek(0)


def judge_metrics(server: str, status: int, body: bytes) -> dict[str, Any] | Failure:
    """What a call of ``/aggregate_metrics`` was answered with: metrics, or why there are none."""
    with contextlib.suppress(ValueError):
        reply = json.loads(body)
        if status == 200 and isinstance(reply, dict):
            return reply
    failure = judge_reply(server, status, body).failure
    return failure or Failure(BAD_REPLY, "answered something that is no JSON object.", server, status)


def find_culprit(body: bytes) -> tuple[str | None, int | None]:
    """The server that an error body blames, and the HTTP status of its answer.

    Ours name both where the failure is not their own: an agent answers 502 whatever its model answered.
    """
    try:
        error = json.loads(body).get("error")
    except (ValueError, RecursionError, AttributeError):
        return None, None
    server, status = (error.get("server"), error.get("status")) if isinstance(error, dict) else (None, None)
    return (
        server if isinstance(server, str) and server else None,
        status if isinstance(status, int) else None,
    )


def find_reward(reply: Mapping[str, Any]) -> float | None:
    """The reply's reward when it is a finite number (a truth value is none), else None."""
    reward = reply.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    try:
        as_float = float(reward)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def tail_of(body: bytes) -> str:
    """The end of an answer's body as text, short enough for a message."""
    text = body[-4 * BODY_TAIL_CHARACTERS :].decode("utf-8", errors="replace").strip()
    return text if len(text) <= BODY_TAIL_CHARACTERS else "…" + text[-BODY_TAIL_CHARACTERS:]


def failure_error(
    failure: Failure, *, task_id: str, repeat: int, results: Sequence[dict[str, Any] | None], failed: int = 1
) -> RolloutFailedError:
    """The error for a task of which ``failed`` rollouts failed, ``failure`` being the first of them."""
    total = len(results)
    what = f"Task {task_id!r}, repeat {repeat}: server {failure.server!r} {failure.reason}"
    if failure.body_tail:
        what += f"\nThe end of its answer: {failure.body_tail}"
    if total > 1:
        what += f"\n{failed} of {total} repeats failed; the others' replies are in the error's results."
    return RolloutFailedError(
        what,
        task_id=task_id,
        repeat=repeat,
        server=failure.server,
        status=failure.status,
        body_tail=failure.body_tail,
        failure_class=failure.failure_class,
        results=results,
    )


def _marked_failure(reply: Mapping[str, Any], marked: Sequence[str], server: str, status: int, body: bytes) -> Failure:
    named = reply.get("_ng_failure_class")
    failure_class = named if isinstance(named, str) and named else MARKED_FAILED
    shown = ", ".join(f"{marker}={reply[marker]!r:.400}" for marker in marked)
    retryable = not reply.get("_ng_failure_terminal")
    reason = f"marked the rollout as failed: {shown}."
    return _failure(failure_class, reason, server, status, body, retryable=retryable)


def _failed(
    failure_class: str, reason: str, server: str, status: int, body: bytes, *, retryable: bool = False
) -> Outcome:
    return Outcome(failure=_failure(failure_class, reason, server, status, body, retryable=retryable))


def _failure(
    failure_class: str, reason: str, server: str, status: int, body: bytes, *, retryable: bool = False
) -> Failure:
    return Failure(failure_class, reason, server, status, tail_of(body), retryable)


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")
