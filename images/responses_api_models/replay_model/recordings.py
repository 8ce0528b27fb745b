"""Recorded answers, found by what was asked. Pure: no request, no file.

A recording is a JSON object with ``request``, ``response`` and, where known, ``path`` (``/v1/responses``) and
``rollout_id``: what this server records, and what ``gym eval run`` keeps with ``observability_enabled`` (its records
of anything but model calls, and of failed ones, are passed over). A line of a rollouts file will do as well: from its
``responses_create_params`` and ``response`` the requests of simple_agent are made again, one for each step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from nemo_gym.servers.anthropic_messages import responses_request
from nemo_gym.servers.chat import ConversionError
from nemo_gym.servers.json_values import dumps, loads
from nemo_gym.servers.messages import JsonDict

RESPONSES = "/v1/responses"
CHAT_COMPLETIONS = "/v1/chat/completions"
MESSAGES = "/v1/messages"

# What says who asks, how the answer travels or where it is kept, and not what is asked.
_NOT_ASKED = frozenset(
    {"model", "stream", "stream_options", "background", "store", "metadata", "user", "safety_identifier"}
    | {"prompt_cache_key", "prompt_cache_retention", "service_tier"}
)
# Chosen anew by whoever writes an item down; a call and its output are tied by ``call_id``.
_NOT_SAID = ("id", "status")

_OF_A_RUN = re.compile(r".+(?P<task>-t\d+)-r(?P<repeat>\d+)(?:-a\d+)?")
_OF_A_REPEAT = re.compile(r".+-r(?P<repeat>\d+)")


class RecordingError(ValueError):
    """A line that is no recording; the message says which and why."""


class Recording(NamedTuple):
    """What was asked by which rollout, and the answer as JSON."""

    path: str
    request: Mapping[str, Any]
    response: bytes
    rollout_id: str | None


class NoRecordingError(LookupError):
    """A request that nobody recorded: its digest, and the fields in which the most similar recorded one differs."""

    def __init__(self, digest: str, recorded: int, nearest: list[str]) -> None:
        super().__init__(digest)
        self.digest = digest
        self.recorded = recorded
        self.nearest = nearest


def parse_recordings(text: bytes) -> Iterator[Recording]:
    """The recordings in JSON lines of any of the three kinds; blank lines are passed over."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = loads(line)
        except orjson.JSONDecodeError as error:
            raise RecordingError(f"line {number} is no JSON: {error.msg}") from None
        try:
            yield from _recordings_of(value)
        except RecordingError as error:
            raise RecordingError(f"line {number}: {error}") from None


def _recordings_of(value: Any) -> Iterator[Recording]:
    if not isinstance(value, dict):
        raise RecordingError(f"needed: a JSON object; found {value!r:.40}")
    if "responses_create_params" in value:
        yield from _steps_of(value)
    elif value.get("kind", "model_call") == "model_call" and value.get("status", 200) == 200:
        request, response = _whole(value, "request"), _whole(value, "response")
        path = value.get("path") or (CHAT_COMPLETIONS if "messages" in request else RESPONSES)
        if path == MESSAGES:
            try:
                request = responses_request(request)  # as a server's other code sees such a request
            except ConversionError as error:
                raise RecordingError(f"its request cannot be used: {error.field}: {error}") from None
        rollout_id = value.get("rollout_id")
        yield Recording(path, request, dumps(response), rollout_id if isinstance(rollout_id, str) else None)


def _whole(record: Mapping[str, Any], name: str) -> JsonDict:
    body = record.get(name)
    if not isinstance(body, dict):
        raise RecordingError(f"it has no {name}, which is a JSON object")
    if set(body) == {"head", "tail"}:
        raise RecordingError(f"its {name} was cut; record again with a larger record_body_kb of that server")
    return body


def _steps_of(row: Mapping[str, Any]) -> Iterator[Recording]:
    """The model calls of a rollout, from what they came to: each step ends where outputs of tools begin."""
    params, response = row["responses_create_params"], row.get("response")
    if not isinstance(params, dict) or "input" not in params:
        raise RecordingError("its responses_create_params have no input")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise RecordingError("it has no response, whose output is a list of items")
    rollout_id = row.get("_ng_rollout_id")
    if not isinstance(rollout_id, str) and "_ng_task_index" in row:
        rollout_id = f"rollout-t{row['_ng_task_index']}-r{row.get('_ng_rollout_index', 0)}"
    items = params["input"]
    conversation = [{"role": "user", "content": items}] if isinstance(items, str) else list(items)
    steps = _steps(response["output"])
    for position, (said, results) in enumerate(steps):
        is_last = position == len(steps) - 1
        # What all steps took together stands at the last one, so that their sum is what it was.
        ends = {} if is_last else {"status": "completed", "incomplete_details": None, "usage": None}
        answer = {**response, **ends, "output": said}
        request = params if position == 0 else {**params, "input": list(conversation)}
        yield Recording(RESPONSES, request, dumps(answer), rollout_id)
        conversation += [*said, *results]


def _steps(output: list[JsonDict]) -> list[tuple[list[JsonDict], list[JsonDict]]]:
    """What the model said in each step, and what the tools did."""
    steps: list[tuple[list[JsonDict], list[JsonDict]]] = [([], [])]
    for item in output:
        is_result = item.get("type") == "function_call_output"
        if not is_result and steps[-1][1]:
            steps.append(([], []))
        steps[-1][1 if is_result else 0].append(item)
    return steps


@dataclass
class _Asked:
    """One request's answers by the rollout that got them, in the order of the recordings."""

    fields: dict[str, bytes]
    answers: dict[str, list[bytes]] = field(default_factory=dict)
    rollouts: dict[str, str | None] = field(default_factory=dict)  # whose they are: the latest attempt's
    by_repeat: dict[int, str] = field(default_factory=dict)
    given: dict[str | None, int] = field(default_factory=dict)  # how many each caller got so far
    strangers: dict[str, int] = field(default_factory=dict)


class Recordings:
    """Answers by digest. Which of several a request gets depends on its rollout's id, never on timing, where it can:

    the answer that this rollout got (the same task and repeat of any run); else that of the same repeat; else, for a
    rollout without a repeat or a request without a rollout, the next in the order of the recordings, and after the
    last one the first again. A rollout that asks the same several times gets its answers in their order.
    """

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, recordings: Iterable[Recording]) -> None:
        for recording in recordings:
            fields = request_fields(recording.path, recording.request)
            asked = self._asked.setdefault(digest_of(fields), _Asked(fields))
            self._count += 1
            rollout_id = recording.rollout_id
            key = f"#{self._count}" if rollout_id is None else _place_of(rollout_id)
            if asked.rollouts.setdefault(key, rollout_id) != rollout_id:
                asked.answers[key] = []  # another attempt: the earlier one came to nothing
                asked.rollouts[key] = rollout_id
            asked.answers.setdefault(key, []).append(recording.response)
            repeat = None if rollout_id is None else _repeat_of(rollout_id)
            if repeat is not None:
                asked.by_repeat.setdefault(repeat, key)

    def find(self, path: str, request: Mapping[str, Any], rollout_id: str | None) -> bytes:
        """The answer to ``request``, as JSON. Raises ``NoRecordingError``."""
        fields = request_fields(path, request)
        digest = digest_of(fields)
        asked = self._asked.get(digest)
        if asked is None:
            raise NoRecordingError(digest, self._count, self._nearest(fields))
        if rollout_id is None:
            answers = [answer for held in asked.answers.values() for answer in held]
        else:
            answers = asked.answers[_choose(asked, rollout_id)]
        if len(answers) == 1:
            return answers[0]
        position = asked.given.get(rollout_id, 0)
        asked.given[rollout_id] = position + 1
        return answers[position % len(answers)]

    def _nearest(self, fields: Mapping[str, bytes]) -> list[str]:
        """The fields in which the most similar request differs; nothing when there is no request."""
        differences = (
            sorted(k for k in fields.keys() | known.fields.keys() if fields.get(k) != known.fields.get(k))
            for known in self._asked.values()
        )
        return min(differences, key=len, default=[])


def _choose(asked: _Asked, rollout_id: str) -> str:
    place, repeat = _place_of(rollout_id), _repeat_of(rollout_id)
    if place in asked.answers:
        return place
    if repeat in asked.by_repeat:
        return asked.by_repeat[repeat]
    if repeat is None:
        repeat = asked.strangers.setdefault(rollout_id, len(asked.strangers))
    return list(asked.answers)[repeat % len(asked.answers)]


def _place_of(rollout_id: str) -> str:
    """What an id has in common with the same task and repeat of other runs and attempts; else the id itself."""
    match = _OF_A_RUN.fullmatch(rollout_id)
    return f"{match['task']}-r{match['repeat']}" if match else rollout_id


def _repeat_of(rollout_id: str) -> int | None:
    match = _OF_A_RUN.fullmatch(rollout_id) or _OF_A_REPEAT.fullmatch(rollout_id)
    return int(match["repeat"]) if match else None


def request_digest(path: str, request: Mapping[str, Any]) -> str:
    """The sha256 of what a request asks, in hex: equal for requests that want the same answer."""
    return digest_of(request_fields(path, request))


def digest_of(fields: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(fields):
        whole.update(name.encode() + b"\0" + fields[name])
    return whole.hexdigest()


def request_fields(path: str, request: Mapping[str, Any]) -> dict[str, bytes]:
    """The sha256 of each field that has a say in the answer, and of the path.

    A field set to null is left out like one that is not there; a whole number is the same with and without its
    fraction; items of a conversation count without their ``id`` and ``status``.
    """
    fields = {"path": path.encode()}
    for name, value in request.items():
        if value is None or name in _NOT_ASKED:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        elif name == "input" and isinstance(value, list):
            value = [{k: v for k, v in item.items() if k not in _NOT_SAID} for item in value]
        fields[name] = hashlib.sha256(dumps(value, option=orjson.OPT_SORT_KEYS)).digest()
    return fields
