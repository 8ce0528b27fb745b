"""Fetching one pinned file over HTTP: resumed, retried, checked, with its progress on standard error.

Only the standard library and tenacity, because prepare scripts also run in environments of their own.
"""

from __future__ import annotations

import base64
import email.utils
import http.client
import os
import ssl
import sys
import time
from email.message import Message
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, Request, build_opener

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from nemo_gym.environment.pinned import DownloadError, sha256_of

ATTEMPTS: Final = 6
_SOCKET_TIMEOUT_S: Final = 60.0
_LONGEST_WAIT_S: Final = 120.0
_CHUNK: Final = 1 << 18
# Answers that another try may not get.
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CA_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class _PassingError(Exception):
    """A fault that may be gone at the next attempt. ``wait_s`` is how long the server asked to wait."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def fetch_url(url: str, part: Path, sha256: str) -> None:
    """Bring the file at ``url`` to ``part``, going on from what ``part`` already holds.

    When it returns, ``part`` is the file with this sha256. Raises ``DownloadError``; a transfer that was cut off
    leaves ``part`` for the next time, a wrong file does not.
    """
    opener = _opener()
    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=_wait,
        retry=retry_if_exception_type(_PassingError),
        reraise=True,
    )
    try:
        retrying(_attempt, opener, url, part, sha256)
    except _PassingError as error:
        raise DownloadError(f"{_shown(url)}: {error}, after {ATTEMPTS} attempts.") from None


_backoff = wait_random_exponential(multiplier=0.5, min=0.2, max=20)


def _wait(state: RetryCallState) -> float:
    """What the server asked for, else a growing random time."""
    error = state.outcome.exception() if state.outcome is not None else None
    wished = error.wait_s if isinstance(error, _PassingError) else None
    return _backoff(state) if wished is None else min(max(wished, 0.0), _LONGEST_WAIT_S)


def _attempt(opener: OpenerDirector, url: str, part: Path, sha256: str) -> None:
    start = part.stat().st_size if part.is_file() else 0
    request = _request(url)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with opener.open(request, timeout=_SOCKET_TIMEOUT_S) as response:
            resumed = start > 0 and _continues(response, start)
            with part.open("ab" if resumed else "wb") as output:
                _receive(response, output, start if resumed else 0, url)
    except HTTPError as error:
        with error:
            if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
                _refuse(error, url)
        # There is nothing beyond what `part` holds: it is complete, or no part of this file.
        resumed = True
    except (URLError, OSError, http.client.HTTPException) as error:
        _explain(error, url)
    found = sha256_of(part)
    if found == sha256:
        return
    size = part.stat().st_size
    with part.open("rb") as content:
        head = content.read(60)
    part.unlink()
    if resumed:
        raise _PassingError("what was received in several parts is not the pinned file")
    raise DownloadError(
        f"{_shown(url)} is another file than the pinned one: its sha256 is {found}, needed is {sha256} "
        f"({size} bytes, beginning with {head!r}). Either the source has changed, or something on the way answers "
        "in its place (a proxy, a login page)."
    )


def _request(url: str) -> Request:
    request = Request(_shown(url), headers={"User-Agent": "nemo-gym", "Accept-Encoding": "identity"})
    parts = urlsplit(url)
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        # Not for whoever a redirect leads to.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
    return request


def _continues(response: Any, start: int) -> bool:
    """Whether the answer goes on where the part ends; else it is the whole file."""
    content_range = str(response.headers.get("Content-Range", ""))
    return response.status == http.client.PARTIAL_CONTENT and content_range.startswith(f"bytes {start}-")


def _receive(response: Any, output: IO[bytes], start: int, url: str) -> None:
    length = response.headers.get("Content-Length")
    expected = int(length) if length is not None and length.isdigit() else None
    received = 0
    progress = _Progress(Path(urlsplit(url).path).name, start, None if expected is None else start + expected)
    try:
        while chunk := response.read(_CHUNK):
            output.write(chunk)
            received += len(chunk)
            progress.show(start + received)
    finally:
        progress.end(start + received)
    if expected is not None and received < expected:
        raise _PassingError(f"the connection ended after {received} of {expected} bytes")


def _refuse(error: HTTPError, url: str) -> None:
    if error.code in _PASSING:
        raise _PassingError(f"the server answered {error.code} {error.reason}", _retry_after(error.headers))
    hint = " A proxy asks for a login: put it into the proxy's address." if error.code == 407 else ""
    raise DownloadError(f"{_shown(url)}: the server answered {error.code} {error.reason}.{hint}") from None


def _retry_after(headers: Message) -> float | None:
    value = (headers.get("Retry-After") or "").strip()
    if value.isdigit():
        return float(value)
    try:
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError):
        return None


def _explain(error: BaseException, url: str) -> None:
    reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, BaseException) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise DownloadError(
            f"{_shown(url)}: its certificate is not trusted ({reason.verify_message}). Where a proxy signs anew, name "
            "its certificates in SSL_CERT_FILE or REQUESTS_CA_BUNDLE."
        ) from None
    raise _PassingError(f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__) from error


def _opener() -> OpenerDirector:
    """Honours HTTP_PROXY, HTTPS_PROXY and NO_PROXY, and every variable in use that names trusted certificates."""
    context = ssl.create_default_context()  # takes in SSL_CERT_FILE and SSL_CERT_DIR
    for variable in _CA_VARIABLES:
        bundle = os.environ.get(variable)
        if not bundle:
            continue
        try:
            folder = Path(bundle).is_dir()
            context.load_verify_locations(cafile=None if folder else bundle, capath=bundle if folder else None)
        except OSError as error:
            raise DownloadError(
                f"{variable} names {bundle!r}, which cannot be read as certificates: {error}."
            ) from None
    return build_opener(HTTPSHandler(context=context))


def _shown(url: str) -> str:
    """The address without a login in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class _Progress:
    """One line on standard error, rewritten in a terminal; elsewhere a line every ten seconds and at the end."""

    def __init__(self, name: str, start: int, total: int | None) -> None:
        self._name, self._start, self._total = name, start, total
        self._rewrite = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def show(self, received: int) -> None:
        now = time.monotonic()
        if now - self._last >= (0.1 if self._rewrite else 10.0):
            self._last = now
            self._write(received, now)

    def end(self, received: int) -> None:
        self._write(received, time.monotonic())
        if self._rewrite:
            sys.stderr.write("\n")

    def _write(self, received: int, now: float) -> None:
        total = "" if self._total is None else f" of {_megabytes(self._total)}"
        rate = (received - self._start) / max(now - self._began, 1e-3)
        line = f"Downloading {self._name}: {_megabytes(received)}{total} MB, {_megabytes(rate)} MB/s"
        sys.stderr.write(f"\r\x1b[K{line}" if self._rewrite else f"{line}\n")
        sys.stderr.flush()


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.1f}"
