"""An OpenAI-compatible endpoint: bounded retries, deadlines, a concurrency cap, and errors that name it."""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.servers.base import READY, Readiness, RequestError
from nemo_gym.servers.client import KEEP_ALIVE_S, payload_of
from nemo_gym.servers.json_values import dumps, loads_said
from nemo_gym.servers.logs import logger
from nemo_gym.servers.messages import JsonDict, error_message_in
from nemo_gym.servers.records import note_retry

if TYPE_CHECKING:
    from tenacity import RetryCallState

PROBE_DEADLINE_S = 5.0
_RETRIED_STATUSES = frozenset({408, 409, 429})
_TAIL_CHARS = 2000
# The settings that an endpoint comes from, for errors that name them.
_BASE_URL = "openai_base_url"
_API_KEY = "openai_api_key"
_NO_ADDRESS = "it is no http:// or https:// address"


class RetryPolicy(BaseModel):
    """How long a failing endpoint is asked again. ``budget_s`` is for attempts and the waits between them."""

    model_config = ConfigDict(frozen=True)

    attempts: int = Field(default=6, ge=1)
    budget_s: float = Field(default=300.0, ge=0)
    first_wait_s: float = Field(default=0.5, ge=0)
    longest_wait_s: float = Field(default=60.0, ge=0)


class EndpointError(RequestError):
    """What the endpoint said instead of an answer, as the caller gets it."""


class _RetriedError(Exception):
    """A failure that another attempt may not meet; ``took_s`` is how long the attempt took."""

    def __init__(self, final: EndpointError, retry_after_s: float | None = None) -> None:
        super().__init__(str(final))
        self.final = final
        self.retry_after_s = retry_after_s
        self.took_s = 0.0


class Endpoint:
    """POSTs to one endpoint. The key goes into a header, and nowhere else."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        *,
        extra_headers: Mapping[str, str] | None = None,
        max_concurrent_requests: int | None = None,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._headers.update(extra_headers or {})
        self._slots = asyncio.Semaphore(max_concurrent_requests) if max_concurrent_requests else None
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._retry = retry or RetryPolicy()
        self._session: aiohttp.ClientSession | None = None
        self._reached = False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, path: str, body: bytes) -> JsonDict:
        """The JSON object that the endpoint answers ``path`` with; else an ``EndpointError``."""
        try:
            return await self._attempt(path, body)
        except _RetriedError as failure:
            return await self._post_again(path, body, failure)

    async def probe(self) -> Readiness:
        """Whether the endpoint answers at all, and takes the key. A success is remembered."""
        if self._reached:
            return READY
        address = f"{self.base_url}/models"
        timeout = aiohttp.ClientTimeout(total=PROBE_DEADLINE_S)
        try:
            parts = urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise aiohttp.InvalidURL(address)
            async with self._client().get(address, headers=self._headers, timeout=timeout) as response:
                status = response.status
        except (aiohttp.InvalidURL, UnicodeError):
            return self._failed(_BASE_URL, _NO_ADDRESS)
        except aiohttp.ClientConnectorDNSError:
            return self._failed(_BASE_URL, f"the name {parts.hostname} cannot be resolved")
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
            return self._failed(_BASE_URL, f"the certificate of {address} is not accepted: {why}")
        except TimeoutError:
            return self._waiting(f"no answer to GET {address} within {PROBE_DEADLINE_S:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            return self._waiting(f"GET {address} cannot be sent: {error}")
        except ValueError:  # urlsplit's own; the certificate's error above is one too
            return self._failed(_BASE_URL, _NO_ADDRESS)
        if status in (401, 403):
            return self._failed(_API_KEY, f"the endpoint refuses the key: HTTP {status} to GET {address}")
        self._reached = True
        return READY

    def _failed(self, key: str, detail: str) -> Readiness:
        return Readiness("failed", key=key, address=self.base_url, detail=detail)

    def _waiting(self, detail: str) -> Readiness:
        return Readiness("waiting", key=_BASE_URL, address=self.base_url, detail=detail)

    async def _post_again(self, path: str, body: bytes, failure: _RetriedError) -> JsonDict:
        # Imported here: most processes never meet a failing endpoint, and each start would pay for it.
        from tenacity import AsyncRetrying, retry_if_exception_type

        pending: list[_RetriedError] = [failure]  # the attempt already made is the first of the policy's

        async def attempt() -> JsonDict:
            if pending:
                raise pending.pop()
            return await self._attempt(path, body)

        attempts_s = 0.0

        def given_up(state: RetryCallState) -> bool:
            nonlocal attempts_s
            attempts_s += _failure_of(state).took_s
            too_late = attempts_s + state.idle_for + state.upcoming_sleep > self._retry.budget_s
            return too_late or state.attempt_number >= self._retry.attempts

        def log(state: RetryCallState) -> None:
            logger.warning("asking again in %.1f s: %s", state.upcoming_sleep, _failure_of(state))
            note_retry(str(_failure_of(state)))

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_RetriedError),
            wait=self._wait_s,
            stop=given_up,
            before_sleep=log,
            reraise=True,
        )
        try:
            return await retrying(attempt)
        except _RetriedError as last:
            raise last.final from None

    def _wait_s(self, state: RetryCallState) -> float:
        asked = _failure_of(state).retry_after_s
        if asked is not None:
            return asked  # more than the budget's rest ends the attempts
        doubled: float = self._retry.first_wait_s * 2 ** (state.attempt_number - 1)
        # Rollouts that failed together would come back together: spread them.
        return min(doubled, self._retry.longest_wait_s) * random.uniform(0.75, 1.25)

    async def _attempt(self, path: str, body: bytes) -> JsonDict:
        async with self._slots or nullcontext():
            started = time.monotonic()  # how long it stood in line for a slot is no failing of the endpoint's
            try:
                return await self._exchange(path, body)
            except _RetriedError as failure:
                failure.took_s = time.monotonic() - started
                raise

    async def _exchange(self, path: str, body: bytes) -> JsonDict:
        address = self.base_url + path
        try:
            async with self._client().post(address, data=payload_of(body), headers=self._headers) as response:
                answer = await response.read()
                status, retry_after = response.status, response.headers.get("Retry-After")
        except TimeoutError as error:
            said = f"{address} did not answer in time: {error or type(error).__name__}"
            final = EndpointError(504, "endpoint_timeout", said, {"endpoint": self.base_url, "status": None})
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise _RetriedError(final) from error
            raise final from error
        except (aiohttp.ClientError, OSError) as error:
            said = f"{address} cannot be reached: {error}"
            final = EndpointError(502, "endpoint_unreachable", said, {"endpoint": self.base_url, "status": None})
            raise _RetriedError(final) from error
        if 200 <= status < 300:
            value = self._json_object(address, answer)
            reported = _status_of_error(value)
            if reported is None:
                self._reached = True
                return value
            status = reported
        final = self._refusal(address, status, answer)
        if status in _RETRIED_STATUSES or status >= 500:
            raise _RetriedError(final, _seconds(retry_after))
        raise final

    def junk(self, path: str, lacks: str, answer: Any) -> EndpointError:
        """The error for an answer that is JSON, and not what was asked for."""
        text = answer if isinstance(answer, str) else dumps(answer).decode()
        said = f"{self.base_url}{path} answered with HTTP 200 and something else than was asked for: {lacks}"
        fields = {"endpoint": self.base_url, "status": 200, "body_tail": text[-_TAIL_CHARS:]}
        return EndpointError(502, "endpoint_junk", said, fields)

    def _json_object(self, address: str, answer: bytes) -> JsonDict:
        try:
            value = loads_said(answer)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            path = address.removeprefix(self.base_url)
            raise self.junk(path, "no JSON object", answer.decode("utf-8", "replace"))
        return value

    def _refusal(self, address: str, status: int, answer: bytes) -> EndpointError:
        text = answer.decode("utf-8", "replace")
        said = f"{address} answered HTTP {status}: {error_message_in(answer)}"
        if status in (401, 403):
            said = f"the endpoint refuses the key ({_API_KEY}): {said}"
        fields = {"endpoint": self.base_url, "status": status, "body_tail": text[-_TAIL_CHARS:]}
        passed_on = status if 400 <= status < 500 else 504 if status == 504 else 502
        return EndpointError(passed_on, "endpoint_error", said, fields)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._connect_timeout_s, sock_read=self._request_timeout_s
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _failure_of(state: RetryCallState) -> _RetriedError:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, _RetriedError):
        raise RuntimeError("a retry without a failure") from error
    return error


def _status_of_error(value: JsonDict) -> int | None:
    """What an error that comes with HTTP 200 stands for (502 when it does not say); None for an answer."""
    error = value.get("error")
    answered = value.get("output") or value.get("choices")
    if not error or (answered and value.get("status") != "failed"):
        return None
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _seconds(retry_after: str | None) -> float | None:
    """What a Retry-After header asks for, in seconds; None for what cannot be read."""
    if not retry_after:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None
