"""What each rollout asked of this server and what it was answered, kept for a while and read back by the rollout's id.

One file per rollout in the container's ``/tmp``, one JSON line per request. Several worker processes of one server
share them: a line is appended by a single write. They take at most about ``budget_bytes``; past that the rollouts that
have been quiet longest go first. Nothing is kept of headers and cookies, and secrets are masked in all that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from aiohttp import web

from nemo_gym.servers.json_values import loads
from nemo_gym.servers.logs import Redactor, logger
from nemo_gym.servers.messages import JsonDict

OBSERVABILITY: Final = "observability_enabled"

_KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "responses_api_models": {},
    "responses_api_agents": {"/run": "run", "/v1/responses": "agent_call"},
    "resources_servers": {
        "/verify": "verification",
        "/seed_session": "seed",
        "/aggregate_metrics": "metrics",
        "/reverify_mode": "metrics",
    },
}
_OTHER_KIND: Final = {"responses_api_models": "model_call", "resources_servers": "tool_call"}

# Headers that somebody quotes, when the secret in them is none of this server's own.
# Without a digit it is prose: "basic multiplication/division".
_QUOTED_AUTHORIZATION: Final = re.compile(
    r"\b(bearer|basic)(\s+)(?=[A-Za-z._~+/=-]*\d)[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE
)
_HEAD_SHARE: Final = 0.75
_FILE_COST_BYTES: Final = 4096  # what a file takes at least
_SMALLEST_SHARE: Final = 16
_KEPT_SHARE: Final = 0.75

_facts: ContextVar[JsonDict | None] = ContextVar("record_facts", default=None)
"""What is added to the running request's record; None when nothing is recorded."""


def note_answer(answer: JsonDict | bytes) -> None:
    """Note which model answered and which tokens it took; they stay readable when the answer itself is cut."""
    facts = _facts.get()
    if facts is None:
        return
    fields = orjson.loads(answer) if isinstance(answer, bytes) else answer
    facts.update(model=fields.get("model"), usage=fields.get("usage"))


def note_verdict(verdict: Mapping[str, Any]) -> None:
    """Note the reward that a verification has come to."""
    facts = _facts.get()
    if facts is not None:
        facts["reward"] = verdict.get("reward")


def note_retry(failure: str) -> None:
    """Note that an endpoint failed and is asked again."""
    facts = _facts.get()
    if facts is not None:
        facts.setdefault("endpoint_failures", []).append(failure)


def kind_of(server_type: str, path: str) -> str:
    """What a request to a server is, such as ``model_call``, ``verification`` or ``tool_call``."""
    return _KINDS.get(server_type, {}).get(path) or _OTHER_KIND.get(server_type, "request")


class Exchange(NamedTuple):
    """One request and its answer. ``status`` and ``response`` are None when the caller left before there was one."""

    kind: str
    method: str
    path: str
    status: int | None
    elapsed_s: float
    request: bytes
    response: bytes | None


class RolloutRecords:
    """The records of one server, in ``folder``. ``body_bytes`` is how much is kept of a body; 0 keeps none."""

    def __init__(self, folder: Path, *, server: str, redact: Redactor, budget_bytes: int, body_bytes: int) -> None:
        self._folder = folder
        self._server = server
        self._redact = redact
        self._budget_bytes = budget_bytes
        self._body_bytes = body_bytes
        self._room_bytes = budget_bytes // _SMALLEST_SHARE
        self._trimming: asyncio.Future[None] | None = None
        self._has_complained = False

    async def begin(self, request: web.Request) -> bytes:
        """Take facts for this request's record from now on; returns its body, which stays readable for the handler."""
        _facts.set({})
        return await request.read() if request.can_read_body else b""

    def add(self, rollout_id: str, exchange: Exchange) -> None:
        """Append a record. Never raises: a request does not fail because it cannot be recorded."""
        try:
            line = b"\n" + orjson.dumps(self._record(rollout_id, exchange), default=str) + b"\n"
            self._append(rollout_id, line)
        except orjson.JSONEncodeError as error:
            self._complain(error)
            return
        except OSError as error:
            self._complain(error)
            self._trim(self._budget_bytes // 2)
            return
        self._room_bytes -= max(len(line), _FILE_COST_BYTES)
        if self._room_bytes < 0:
            self._trim_soon()

    def read(self, rollout_id: str) -> list[JsonDict]:
        """The records of a rollout in the order of their times; none when nothing is known of it."""
        try:
            lines = (self._folder / rollout_id).read_bytes().splitlines()
        except OSError:
            return []
        records: list[JsonDict] = []
        for line in lines:
            with contextlib.suppress(orjson.JSONDecodeError):  # cut off where /tmp was full
                if line:
                    records.append(_with_json_bodies(orjson.loads(line)))
        return sorted(records, key=lambda record: str(record["time"]))

    def rollouts(self) -> list[JsonDict]:
        """``{rollout_id, time}`` of each rollout that there are records of, the latest first."""
        found = sorted(((mtime, name) for name, mtime, _ in self._files()), reverse=True)
        return [{"rollout_id": name, "time": _iso(datetime.fromtimestamp(mtime, UTC))} for mtime, name in found]

    def _record(self, rollout_id: str, exchange: Exchange) -> JsonDict:
        began = datetime.now(UTC) - timedelta(seconds=exchange.elapsed_s)
        record: JsonDict = {
            "time": _iso(began),
            "rollout_id": rollout_id,
            "server": self._server,
            "kind": exchange.kind,
            "method": exchange.method,
            "path": self._masked(exchange.path),
            "status": exchange.status,
            "duration_s": round(exchange.elapsed_s, 6),
            **self._masked_values(_facts.get() or {}),
        }
        for name, body in (("request", exchange.request), ("response", exchange.response)):
            if body:
                record[name] = self._kept(body)
                record[f"{name}_bytes"] = len(body)
        return record

    def _kept(self, body: bytes) -> str | JsonDict | None:
        """A body as text, or its ``head`` and ``tail``. No cut goes through a secret, which would then not be seen."""
        if len(body) <= self._body_bytes:
            return self._masked_body(body)
        if not self._body_bytes:
            return None
        head_end = int(self._body_bytes * _HEAD_SHARE)
        tail_start = len(body) - (self._body_bytes - head_end)
        for secret in self._redact.spellings:
            if (start := _find_across(body, secret, head_end)) >= 0:
                head_end = start
            if (start := _find_across(body, secret, tail_start)) >= 0:
                tail_start = start + len(secret)
        parts = {"head": body[:head_end], "tail": body[tail_start:]}
        return {name: self._masked_body(part) for name, part in parts.items()}

    def _masked_body(self, body: bytes) -> str:
        """Short secrets stay, which are words of a prompt too: errors, which may quote any, come here without them."""
        return _without_authorization(self._redact.answer(body).decode("utf-8", "replace"))

    def _masked(self, text: str) -> str:
        return _without_authorization(self._redact(text))

    def _masked_values(self, node: Any) -> Any:
        if isinstance(node, str):
            return self._masked(node)
        if isinstance(node, Mapping):
            return {key: self._masked_values(value) for key, value in node.items()}
        return [self._masked_values(value) for value in node] if isinstance(node, list) else node

    def _complain(self, error: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            logger.warning("a record of this rollout is lost, and others may be: %s", error)

    # -- files -------------------------------------------------------------------------------------------

    def _append(self, rollout_id: str, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        path = self._folder / rollout_id
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(f"there is no room left in {self._folder}")
        finally:
            os.close(descriptor)

    def _trim_soon(self) -> None:
        """Look after the budget in a thread: there may be thousands of files."""
        if self._trimming is None or self._trimming.done():
            loop = asyncio.get_running_loop()
            self._trimming = loop.run_in_executor(None, self._trim, self._budget_bytes)

    def _trim(self, budget_bytes: int) -> None:
        """Remove the rollouts that have been quiet longest, when all together are over the budget."""
        files = self._files()
        total = sum(size for _, _, size in files)
        if total > budget_bytes:
            for name, _, size in sorted(files, key=lambda file: file[1]):
                with contextlib.suppress(OSError):  # another worker was first
                    (self._folder / name).unlink()
                total -= size
                if total <= budget_bytes * _KEPT_SHARE:
                    break
        # Half of what is left: other workers write too.
        self._room_bytes = max((self._budget_bytes - total) // 2, self._budget_bytes // _SMALLEST_SHARE)

    def _files(self) -> Sequence[tuple[str, float, int]]:
        """Each rollout's id, when it was last written to, and the bytes it takes."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    state = entry.stat()
                    found.append((entry.name, state.st_mtime, max(state.st_blocks * 512, _FILE_COST_BYTES)))
        return found


def _find_across(body: bytes, secret: bytes, place: int) -> int:
    """Where a secret begins that a cut at ``place`` would go through, else -1."""
    return body.find(secret, max(0, place - len(secret) + 1), place + len(secret) - 1)


def _without_authorization(text: str) -> str:
    lower = text.lower()
    if "bearer" in lower or "basic" in lower:
        text = _QUOTED_AUTHORIZATION.sub(r"\1\2***", text)
    return text


def _with_json_bodies(record: JsonDict) -> JsonDict:
    """The record with what was sent as JSON read; other text stays text."""
    for name in ("request", "response"):
        if isinstance(record.get(name), str):
            with contextlib.suppress(orjson.JSONDecodeError):
                record[name] = loads(record[name].encode())
    return record


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
