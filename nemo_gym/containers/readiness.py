"""Waiting until a server is ready: an HTTP answer of the right one, within a deadline, or a reason at once.

An open TCP port proves nothing: the engine's port proxy accepts before the server listens.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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

_MOST_READ = 65536
"""No answer that means anything here has as many bytes."""

_BEGUN_S = 1.0
"""An answer that has begun may take this long at least, also at the end of the time."""

_STOP_LOOK_S = 0.05
"""How often a request that hangs looks whether anybody still wants its answer."""


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
    """Whom to ask, and who should answer. ``prefix`` stands before each path; ``token`` goes with each request."""

    host: str
    port: int
    server: str
    session_id: str
    prefix: str = ""
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds a server may take until it answers at all, and then until its model endpoint does."""

    server_s: float
    endpoint_s: float


class _NotYet(Exception):
    """Ask again."""


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long one wait goes on: to a moment of ``time.monotonic``, or until the event is set."""

    until: float
    stop: threading.Event


def wait_until_answering(probe: Probe, deadlines: Deadlines, stop: threading.Event) -> None:
    """Until ``GET /`` is answered by the server expected. Raises ``NotReadyError``."""
    _poll(
        lambda patience: _check_identity(probe, patience), deadlines.server_s, stop, f"{probe.server} does not answer"
    )


def wait_until_ready(probe: Probe, deadlines: Deadlines, stop: threading.Event) -> None:
    """Until the server expected answers ``GET /ready`` with 200. Raises ``NotReadyError``."""
    wait_until_answering(probe, deadlines, stop)
    waiting_since = time.monotonic()
    last: dict[str, Any] = {}

    def check(patience: _Patience) -> None:
        status, body = _get(probe, "/ready", patience)
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


def wait_until_any_answer(probe: Probe, deadlines: Deadlines, stop: threading.Event) -> None:
    """Until an HTTP request is answered at all, whatever the status. Raises ``NotReadyError``.

    For servers written elsewhere, which have no route that says who they are: that it is the right one follows from
    the engine's own port mapping. An answer of the registry, that it did not reach the server, is none.
    """

    def check(patience: _Patience) -> None:
        # of the server's own answer, which may be a stream without an end, nothing is read
        _, body = _get(probe, "/", patience, reads=lambda status: probe.prefix != "" and status >= 400)
        error = body.get("error")
        if probe.prefix and isinstance(error, dict) and error.get("type") == "downstream_error":
            raise _NotYet(str(error.get("message")))

    _poll(check, deadlines.server_s, stop, f"{probe.server} does not answer")


def _poll(
    check: Callable[[_Patience], None],
    timeout_s: float,
    stop: threading.Event,
    what: str,
    last: dict[str, Any] | None = None,
) -> None:
    retrying = Retrying(
        retry=retry_if_exception_type((_NotYet, OSError, http.client.HTTPException)),
        # growing slowly: what is waited for takes tenths of a second, and each step overshoots by half of itself
        wait=wait_exponential(multiplier=0.01, exp_base=1.25, max=0.25),
        stop=stop_any(stop_after_delay(timeout_s), stop_when_event_set(stop)),
        sleep=sleep_using_event(stop),
        reraise=True,
    )
    try:
        retrying(check, _Patience(time.monotonic() + timeout_s, stop))
    except (_NotYet, OSError, http.client.HTTPException) as error:
        if stop.is_set():
            raise NotReadyError(NotReadyReason.STOPPED, "stopped", last) from error
        detail = str(error) or type(error).__name__
        raise NotReadyError(NotReadyReason.LATE, f"{what} ({detail}) after {timeout_s:g} s", last) from error


def _check_identity(probe: Probe, patience: _Patience) -> None:
    status, body = _get(probe, "/", patience)
    if status >= 500:
        raise _NotYet(f"GET / answered {status}")
    found = (body.get("server"), body.get("session_id"))
    if found != (probe.server, probe.session_id):
        raise NotReadyError(
            NotReadyReason.WRONG_SERVER,
            f"{probe.host}:{probe.port} is answered by another server (HTTP {status}, {json.dumps(body)[:200]})",
        )


def _get(
    probe: Probe, path: str, patience: _Patience, reads: Callable[[int], bool] = lambda status: True
) -> tuple[int, dict[str, Any]]:
    """Status and body; the body is empty when it is no JSON object, or when the status ``reads`` says not to."""
    until = min(patience.until, time.monotonic() + _REQUEST_TIMEOUT_S)
    # not zero, which would mean a socket that does not block
    timeout_s = max(until - time.monotonic(), _STOP_LOOK_S)
    connection = http.client.HTTPConnection(probe.host, probe.port, timeout=timeout_s)
    try:
        headers = {} if probe.token is None else {"Authorization": f"Bearer {probe.token}"}
        connection.request("GET", probe.prefix + path, headers=headers)
        _await_answer(connection.sock, until, patience.stop)
        with connection.getresponse() as response:
            text = _read(response, until, patience.stop) if reads(response.status) else b""
    finally:
        connection.close()
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    return response.status, body if isinstance(body, dict) else {}


def _read(response: http.client.HTTPResponse, until: float, stop: threading.Event) -> bytes:
    """The body, or its beginning. The socket's timeout holds for one piece, and some bodies are streams of many."""
    text = bytearray()
    until = max(until, time.monotonic() + _BEGUN_S)
    while byte := response.read(1):  # a larger read waits until it has all it asks for
        text += byte
        if len(text) == _MOST_READ:
            return bytes(text)
        if stop.is_set() or time.monotonic() >= until:
            raise TimeoutError("its answer has no end")
    if response.length:
        raise http.client.IncompleteRead(bytes(text), response.length)
    return bytes(text)


def _await_answer(connection: socket.socket, until: float, stop: threading.Event) -> None:
    """Until there is something to read; ``TimeoutError`` when the time is up, or nobody wants it any more."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while not selector.select(_STOP_LOOK_S):
            if stop.is_set() or time.monotonic() >= until:
                raise TimeoutError("it takes connections and does not answer")
