"""Verifiers asked about rollouts that are there already: for their rewards anew, and for metrics over all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.connection import CONNECT_TIMEOUT_S, connection_budget
from nemo_gym.rollouts.replies import (
    CONNECTION_LOST,
    Failure,
    Outcome,
    judge_metrics,
    judge_reply,
    write_aggregate_body,
)

if TYPE_CHECKING:
    import aiohttp

UNSUPPORTED: Final = "unsupported"


@dataclass(frozen=True, slots=True)
class Verifier:
    """A resources server: its name, where it answers, and the headers that it wants."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class VerifierClient:
    """Calls to verifiers, through a session of the caller's."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def check_reverifies(self, verifier: Verifier) -> None:
        """``ConfigError`` when a verifier cannot tell a reward from a row and a response alone."""
        try:
            status, body = await self._call("GET", verifier, "/reverify_mode", None)
        except (OSError, _client_error()) as error:
            raise ConfigError(f"The server {verifier.name!r} does not answer /reverify_mode: {error}.") from error
        mode = None
        with contextlib.suppress(ValueError):
            mode = json.loads(body)
        if isinstance(mode, dict):
            mode = mode.get("mode", mode.get("reverify_mode"))
        if status != 200 or not isinstance(mode, str):
            raise ConfigError(
                f"The server {verifier.name!r} does not say whether it can verify again: GET /reverify_mode answered "
                f"HTTP {status}. A reward that needs more than row and response would come out wrong."
            )
        if mode == UNSUPPORTED:
            raise ConfigError(
                f"The server {verifier.name!r} cannot verify again: its rewards depend on the state of a session, "
                "which ended with its rollout. Run the benchmark anew to have rewards of the current verifier."
            )

    async def verify(self, verifier: Verifier, body: bytes) -> Outcome:
        """The verdict on a row with its response; what breaks is a failure, never a reward."""
        try:
            status, reply = await self._call("POST", verifier, "/verify", body)
        except (OSError, _client_error()) as error:
            reason = f"broke the connection or did not answer: {error or type(error).__name__}."
            return Outcome(failure=Failure(CONNECTION_LOST, reason, verifier.name, retryable=True))
        return judge_reply(verifier.name, status, reply)

    async def aggregate(self, verifier: Verifier, replies: Iterable[bytes]) -> dict[str, Any] | Failure:
        """The verifier's own metrics over these replies, each the JSON of one; they are never all in memory."""
        with tempfile.TemporaryFile() as body:
            write_aggregate_body(body, replies)
            try:
                status, content = await self._call("POST", verifier, "/aggregate_metrics", body)
            except (OSError, _client_error()) as error:
                return Failure(CONNECTION_LOST, f"did not answer: {error}.", verifier.name)
        return judge_metrics(verifier.name, status, content)

    async def _call(self, method: str, verifier: Verifier, path: str, body: bytes | IO[bytes] | None) -> Any:
        headers = {"Content-Type": "application/json", **verifier.headers}
        async with self._session.request(
            method, verifier.url + path, data=body, headers=headers, allow_redirects=False
        ) as answer:
            return answer.status, await answer.read()


@contextlib.asynccontextmanager
async def open_verifier_client() -> AsyncIterator[VerifierClient]:
    """A client whose connections end with the block. Calls beyond what this process can open wait for one."""
    import aiohttp

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connection_budget(), keepalive_timeout=2.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
    try:
        yield VerifierClient(session)
    finally:
        await session.close()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next round


def _client_error() -> type[Exception]:
    import aiohttp

    return aiohttp.ClientError
