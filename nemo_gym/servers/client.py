"""Calls between servers: one connection pool, no limits, raw bytes in and out."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp
import orjson
from yarl import URL

from nemo_gym.servers.json_values import loads
from nemo_gym.servers.logs import current_rollout_id
from nemo_gym.servers.messages import error_body, error_message_in

BODY_TAIL_CHARS = 2000

# Servers close idle connections too (after 5 s where uvicorn's default stands). Letting go first means that a
# request is never written to a connection that its server is just closing, so a POST needs no blind retry.
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 30.0
_LARGE_BODY_BYTES = 2**20

Cookies = MutableMapping[str, str]


def open_client_session(**kwargs: Any) -> aiohttp.ClientSession:
    """A client session for rollouts: no total timeout, no connection limit, no cookie jar of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        **kwargs,
    )


def payload_of(body: bytes | None) -> bytes | BytesIO | None:
    """A request body as aiohttp wants it: large ones as a stream, so that writing one does not hold up the others."""
    return body if body is None or len(body) <= _LARGE_BODY_BYTES else BytesIO(body)


class DownstreamError(Exception):
    """Another server did not do what was asked of it: ``status`` is its answer's, None when there was none."""

    def __init__(self, server: str, path: str, *, status: int | None, detail: str, timed_out: bool = False) -> None:
        self.server = server
        self.status = status
        self.body_tail = detail[-BODY_TAIL_CHARS:]
        self.timed_out = timed_out
        said = f"answered HTTP {status} to {path}" if status is not None else f"did not answer {path}"
        super().__init__(f"server {server} {said}: {self.body_tail}")

    @property
    def reply_status(self) -> int:
        """The status that the caller's own caller gets."""
        return 504 if self.timed_out or self.status == 504 else 502

    def reply_body(self) -> bytes:
        """The JSON body that the caller's own caller gets."""
        details = {"server": self.server, "status": self.status, "body_tail": self.body_tail}
        return error_body("downstream_error", str(self), details)


@dataclass(frozen=True)
class Reply:
    """An answer of another server: its status and its body as it came."""

    server: str
    path: str
    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def tail(self) -> str:
        """The body's end."""
        return self.text()[-BODY_TAIL_CHARS:]

    def error_message(self) -> str:
        """What an error body says in a sentence; else the body's end."""
        return error_message_in(self.body)

    def raise_for_status(self) -> Reply:
        """This reply, when it is a 2xx."""
        if not self.ok:
            raise DownstreamError(self.server, self.path, status=self.status, detail=self.text())
        return self

    def json_object(self) -> dict[str, Any]:
        """The JSON object in the body; anything else is a ``DownstreamError``."""
        try:
            value = loads(self.body)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            detail = f"no JSON object: {self.tail()}"
            raise DownstreamError(self.server, self.path, status=self.status, detail=detail)
        return value


class ServerClient:
    """Posts JSON to other servers of a session, under the running rollout's prefix where they know it."""

    def __init__(self, *, token: str | None = None) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._knows_rollouts: dict[str, bool] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, server: str, url: str, path: str, body: bytes, *, cookies: Cookies | None = None) -> Reply:
        """POST ``body`` to ``path``; ``cookies`` are sent, and updated with those of the answer.

        A server written elsewhere may not know the ``/ng-rollout`` prefix: a 404 to the first call that uses it
        is asked again without, and remembered.
        """
        rollout_id = current_rollout_id.get()
        knows = self._knows_rollouts.get(url)
        if rollout_id is None or knows is False:
            return await self._send("POST", server, url + path, path, body, cookies)
        # Put together from parts: every rollout has addresses of its own, and each text would be parsed anew.
        address = URL(url).with_path(f"/ng-rollout/{rollout_id}{path}")
        reply = await self._send("POST", server, address, path, body, cookies)
        if knows:
            return reply
        if reply.status == 404:
            plain = await self._send("POST", server, url + path, path, body, cookies)
            if plain.status != 404:
                self._knows_rollouts[url] = False
            return plain
        self._knows_rollouts[url] = True
        return reply

    async def get(self, server: str, url: str, path: str) -> Reply:
        """GET ``path``."""
        return await self._send("GET", server, url + path, path, None, None)

    async def _send(
        self, method: str, server: str, address: str | URL, path: str, body: bytes | None, cookies: Cookies | None
    ) -> Reply:
        if self._session is None:
            self._session = open_client_session()
        headers = self._headers
        if cookies:
            headers = {**headers, "Cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())}
        try:
            data = None if body is None else payload_of(body)
            async with self._session.request(method, address, data=data, headers=headers) as response:
                answer = await response.read()
                if cookies is not None:
                    _take_cookies(response, cookies)
                return Reply(server, path, response.status, answer)
        except (aiohttp.ClientError, OSError) as error:
            detail = f"{type(error).__name__}: {error}"
            late = isinstance(error, TimeoutError)
            raise DownstreamError(server, path, status=None, detail=detail, timed_out=late) from error


def _take_cookies(response: aiohttp.ClientResponse, cookies: Cookies) -> None:
    # Values are carried as they were written: parsing and quoting them again could break a foreign signature.
    for header in response.headers.getall("Set-Cookie", ()):
        pair, *attributes = header.split(";")
        name, equals, value = pair.strip().partition("=")
        if not equals:
            continue
        if any(a.strip().lower() in ("max-age=0", "max-age=-1") for a in attributes):
            cookies.pop(name, None)
        else:
            cookies[name] = value
