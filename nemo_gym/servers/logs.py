"""JSON lines on stderr that say which server and which rollout, and hide the server's own secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson

current_rollout_id: ContextVar[str | None] = ContextVar("current_rollout_id", default=None)
"""The rollout that the running request belongs to, or None."""

logger = logging.getLogger("nemo_gym.server")

_SECRET_WORDS = ("key", "token", "secret", "password", "credential", "authorization")
_SHORTEST_SECRET = 4
_UNMISTAKABLE_BYTES = 16
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


def _spellings(secret: str) -> set[str]:
    escaped = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {secret, quote(secret, safe=""), *escaped}


def secrets_in(node: Any, *, below_secret_key: bool = False) -> set[str]:
    """The strings that stand in a config under keys whose names speak of secrets, and the longer values of headers."""
    if isinstance(node, Mapping):
        found: set[str] = set()
        for key, value in node.items():
            name = str(key).lower()
            if name.endswith(_HEADERS) and isinstance(value, Mapping):
                found |= {v for v in value.values() if isinstance(v, str) and len(v) >= _SHORTEST_HEADER_VALUE}
            found |= secrets_in(value, below_secret_key=below_secret_key or any(w in name for w in _SECRET_WORDS))
        return found
    if isinstance(node, (list, tuple)):
        return set().union(*(secrets_in(item, below_secret_key=below_secret_key) for item in node))
    return {node} if below_secret_key and isinstance(node, str) and node else set()


class JsonLineFormatter(logging.Formatter):
    """One JSON object per record, with what ``extra=`` added."""

    def __init__(self, server_name: str, redact: Redactor) -> None:
        super().__init__()
        self._server_name = server_name
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "server": self._server_name,
            "message": record.getMessage(),
        }
        rollout_id = current_rollout_id.get()
        if rollout_id is not None:
            line["rollout_id"] = rollout_id
        line.update({k: v for k, v in vars(record).items() if k not in _PLAIN_ATTRIBUTES})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return self._redact(orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode())


def configure_logging(server_name: str, redact: Redactor, level: str = "INFO") -> None:
    """Send every record of this process to stderr as a JSON line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLineFormatter(server_name, redact))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
