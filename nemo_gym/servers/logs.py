"""JSON lines on stderr that say which server and which rollout, and hide the server's own secrets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

current_rollout_id: ContextVar[str | None] = ContextVar("current_rollout_id", default=None)
"""The rollout that the running request belongs to, or None."""

logger = logging.getLogger("nemo_gym.server")

_SECRET_WORDS = ("key", "token", "secret", "password", "credential", "authorization")
_SHORTEST_SECRET = 4
_PLAIN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Redactor:
    """Replaces known secrets in text. Longer ones first, since one secret may contain another."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= _SHORTEST_SECRET}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, "***")
        return text


def secrets_in(node: Any, *, below_secret_key: bool = False) -> set[str]:
    """The strings that stand in a config under keys whose names speak of secrets."""
    if isinstance(node, Mapping):
        found: set[str] = set()
        for key, value in node.items():
            name = str(key).lower()
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
