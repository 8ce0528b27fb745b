"""JSON lines on stderr that say which server and which rollout, and hide the server's own secrets."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import orjson

from nemo_gym.secret_keys import is_secret_key

current_rollout_id: ContextVar[str | None] = ContextVar("current_rollout_id", default=None)
"""The rollout that the running request belongs to, or None."""

logger = logging.getLogger("nemo_gym.server")

Lock = Callable[[], AbstractContextManager[None]]

_SHORTEST_SECRET = 4
_UNMISTAKABLE_BYTES = 16
_QUOTED_IN_QUOTED = 4
_HEADERS = "headers"
_SHORTEST_HEADER_VALUE = 8
_PLAIN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Redactor:
    """Replaces known secrets in text, as they are and as JSON or a URL spells them.

    Longer ones first, since one secret may contain another.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings = {spelling for s in secrets if len(s) >= _SHORTEST_SECRET for spelling in _spellings(s)}
        self._secrets = sorted(spellings, key=len, reverse=True)
        self.spellings = tuple(secret.encode() for secret in self._secrets)
        self._unmistakable = tuple(secret for secret in self.spellings if len(secret) >= _UNMISTAKABLE_BYTES)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, "***")
        return text

    def answer(self, body: bytes) -> bytes:
        """A good answer without the secrets in it. Short ones stay: "none" for a key is a word that a model uses."""
        for secret in self._unmistakable:
            if secret in body:
                body = body.replace(secret, b"***")
        return body

    def encoded(self, text: bytes) -> bytes:
        """The same for text that is encoded already."""
        for secret in self.spellings:
            if secret in text:
                text = text.replace(secret, b"***")
        return text


def _spellings(secret: str) -> set[str]:
    # An error quotes the error that it comes from, and so JSON stands in JSON in JSON.
    found = {secret}
    for _ in range(_QUOTED_IN_QUOTED):
        found |= {json.dumps(text, ensure_ascii=ascii)[1:-1] for text in found for ascii in (True, False)}
    return {*found, quote(secret, safe="")}


def secrets_in(node: Any, *, below_secret_key: bool = False) -> set[str]:
    """The strings that stand in a config under keys whose names speak of secrets, and the longer values of headers."""
    if isinstance(node, Mapping):
        found: set[str] = set()
        for key, value in node.items():
            if str(key).lower().endswith(_HEADERS) and isinstance(value, Mapping):
                found |= {v for v in value.values() if isinstance(v, str) and len(v) >= _SHORTEST_HEADER_VALUE}
            found |= secrets_in(value, below_secret_key=below_secret_key or is_secret_key(str(key)))
        return found
    if isinstance(node, (list, tuple)):
        return set().union(*(secrets_in(item, below_secret_key=below_secret_key) for item in node))
    return {node} if below_secret_key and isinstance(node, str) and node else set()


class JsonLineHandler(logging.Handler):
    """Writes one JSON object per record, with what ``extra=`` added, to a file descriptor.

    ``worker`` is the number of this process where a server has several; they write one at a time, under ``lock``.
    """

    def __init__(
        self,
        server_name: str,
        redact: Redactor,
        *,
        worker: int | None = None,
        lock: Lock = nullcontext,
        descriptor: int = 2,
    ) -> None:
        super().__init__()
        self._origin: dict[str, Any] = {"server": server_name} | ({} if worker is None else {"worker": worker})
        self._redact = redact
        self._processes = lock
        self._descriptor = descriptor
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            more = {k: v for k, v in vars(record).items() if k not in _PLAIN_ATTRIBUTES}
            if record.exc_info:
                more["traceback"] = self._formatter.formatException(record.exc_info)
            self.write(record.levelname.lower(), record.getMessage(), record.created, more)
        except Exception:
            self.handleError(record)

    def write(self, level: str, message: str, moment: float, more: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write a line of its own, said at ``moment`` (seconds since the epoch)."""
        line: dict[str, Any] = {"time": datetime.fromtimestamp(moment, UTC), "level": level, **self._origin}
        line["message"] = message
        rollout_id = current_rollout_id.get()
        if rollout_id is not None:
            line["rollout_id"] = rollout_id
        line.update(more)
        rest = self._redact.encoded(orjson.dumps(line, default=str, option=_LINE_OPTIONS))
        self.acquire()
        try:
            with self._processes():
                while rest:  # all at once, but for a pipe and a line that is longer than it holds
                    rest = rest[os.write(self._descriptor, rest) :]
        finally:
            self.release()


_LINE_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
_lines: JsonLineHandler | None = None


def configure_logging(
    server_name: str, redact: Redactor, level: str = "INFO", *, worker: int | None = None, lock: Lock = nullcontext
) -> None:
    """Send every record of this process to stderr as a JSON line."""
    global _lines
    _lines = JsonLineHandler(server_name, redact, worker=worker, lock=lock)
    root = logging.getLogger()
    root.handlers = [_lines]
    root.setLevel(level.upper())


def log_request(method: str, path: str, status: int, elapsed_s: float) -> None:
    """Say, at level info, what the running request's rollout has asked of this server.

    There is one such line per request. Made by the logging module they would cost a tenth of a rollout's CPU time, so
    they go straight to where its records go.
    """
    if logger.isEnabledFor(logging.INFO):
        message = f"{method} {path}: {status} in {elapsed_s:.3f} s"
        if _lines is None:
            logger.info("%s", message)
        else:
            _lines.write("info", message, time.time())
