"""Waiting until a server is ready: an HTTP answer of the right one, within a deadline, or a reason at once.

An open TCP port proves nothing: the engine's port proxy accepts before the server listens.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_exponential,
)

_REQUEST_TIMEOUT_S = 15.0
"""A readiness answer may take a probe of a model endpoint (5 s), on a busy machine."""


class NotReadyReason(Enum):
    """Why a wait ended without a ready server."""

    STOPPED = "stopped"  # the caller's event was set: the container died, or the start was given up
    LATE = "late"
    ENDPOINT_LATE = "endpoint late"
    FAILED = "failed"
    WRONG_SERVER = "wrong server"


class NotReadyError(Exception):
    """A wait that ended without a ready server; ``answer`` is the last ``/ready`` body, if any."""

    def __init__(self, reason: NotReadyReason, detail: str, answer: dict[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.answer = answer or {}


@dataclass(frozen=True, slots=True)
class Probe:
    """Whom to ask, and who should answer."""

    host: str
    port: int
    server: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds a server may take until it answers at all, and then until its model endpoint does."""

    server_s: float
    endpoint_s: float


class _NotYet(Exception):
    """Ask again."""


def wait_until_answering(probe: Probe, deadlines: Deadlines, stop: threading.Event) -> None:
    """Until ``GET /`` is answered by the server expected. Raises ``NotReadyError``."""
    _poll(lambda: _check_identity(probe), deadlines.server_s, stop, f"{probe.server} does not answer")


def wait_until_ready(probe: Probe, deadlines: Deadlines, stop: threading.Event) -> None:
    """Until the server expected answers ``GET /ready`` with 200. Raises ``NotReadyError``."""
    wait_until_answering(probe, deadlines, stop)
    waiting_since = time.monotonic()
    last: dict[str, Any] = {}

    def check() -> None:
        status, body = _get(probe, "/ready")
        if status == 200:
            return
        last.update(body)
        detail = str(body.get("detail") or f"/ready answered {status}")
        if body.get("status") == "failed":
            raise NotReadyError(NotReadyReason.FAILED, detail, body)
        if body.get("key") and time.monotonic() - waiting_since > deadlines.endpoint_s:
            raise NotReadyError(NotReadyReason.ENDPOINT_LATE, detail, body)
        raise _NotYet(detail)

    _poll(check, max(deadlines.server_s, deadlines.endpoint_s + _REQUEST_TIMEOUT_S), stop, "not ready", last)


def _poll(check: Any, timeout_s: float, stop: threading.Event, what: str, last: dict[str, Any] | None = None) -> None:
    retrying = Retrying(
        retry=retry_if_exception_type((_NotYet, OSError, http.client.HTTPException)),
        # growing slowly: what is waited for takes tenths of a second, and each step overshoots by half of itself
        wait=wait_exponential(multiplier=0.01, exp_base=1.25, max=0.25),
        stop=stop_any(stop_after_delay(timeout_s), stop_when_event_set(stop)),
        sleep=sleep_using_event(stop),
        reraise=True,
    )
    try:
        retrying(check)
    except (_NotYet, OSError, http.client.HTTPException) as error:
        if stop.is_set():
            raise NotReadyError(NotReadyReason.STOPPED, "stopped", last) from error
        detail = str(error) or type(error).__name__
        raise NotReadyError(NotReadyReason.LATE, f"{what} ({detail}) after {timeout_s:g} s", last) from error


def _check_identity(probe: Probe) -> None:
    status, body = _get(probe, "/")
    if status >= 500:
        raise _NotYet(f"GET / answered {status}")
    found = (body.get("server"), body.get("session_id"))
    if found != (probe.server, probe.session_id):
        raise NotReadyError(
            NotReadyReason.WRONG_SERVER,
            f"{probe.host}:{probe.port} is answered by another server (HTTP {status}, {json.dumps(body)[:200]})",
        )


def _get(probe: Probe, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(probe.host, probe.port, timeout=_REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    return response.status, body if isinstance(body, dict) else {}
