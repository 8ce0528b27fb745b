"""Sends rows through their agent's ``/run`` and tells a reward from a failure."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import errno
import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import IO, Any, Final

import tenacity

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.connection import ConnectionPool, RegistryConnection
from nemo_gym.rollouts.records import Gathered, RecordedRollout, load_recorded_rollouts, load_records
from nemo_gym.rollouts.registry_client import HostView, RegistryAddress, RegistryNotReadyError
from nemo_gym.rollouts.replies import (
    CONNECTION_LOST,
    Failure,
    Outcome,
    judge_metrics,
    judge_reply,
    write_aggregate_body,
)
from nemo_gym.rollouts.rows import ROLLOUT_ID, find_agent_name

CAUSE_OF_BROKEN_CONNECTION_S: Final = 2.0
CAUSE_OF_SERVER_ERROR_S: Final = 0.4


class RolloutCollectionHelper:
    """Runs rows against the servers of a registry, from any event loop, as many at once as the caller asks for.

    It never retries, sets no limit on how long a rollout takes, and has connections open only while calls are.
    """

    def __init__(self) -> None:
        self._connections = ConnectionPool()

    async def wait_until_ready(self, registry: RegistryAddress, timeout_s: float | None) -> None:
        """Return once the registry and all its servers are ready; ``ConfigError`` after ``timeout_s``, if given."""
        seen = "nothing answered"
        retry = tenacity.retry_if_exception_type(RegistryNotReadyError)
        attempts = tenacity.AsyncRetrying(retry=retry, wait=tenacity.wait_exponential(multiplier=0.01, max=0.25))
        try:
            async with asyncio.timeout(timeout_s), self._connections.connected(registry) as connection:
                async for attempt in attempts:
                    with attempt:
                        await connection.load_host_view()
                    if attempt.retry_state.outcome is not None and attempt.retry_state.outcome.failed:
                        seen = str(attempt.retry_state.outcome.exception())
        except TimeoutError as error:
            raise ConfigError(
                f"The registry at {registry.url} was not ready within {timeout_s:g} s: {seen}. Start the servers "
                "there (`gym env start`, or serve_benchmark with this registry_port), or allow more time."
            ) from error

    @contextlib.asynccontextmanager
    async def connected(self, registry: RegistryAddress) -> AsyncIterator[None]:
        """Keep the connections to ``registry`` open between the calls made inside the block."""
        async with self._connections.connected(registry):
            yield

    async def get_host_view(self, registry: RegistryAddress) -> HostView:
        """What ``registry`` serves; ``ConfigError`` says what to do when it is not there or not ready."""
        async with self._connections.connected(registry) as connection:
            return await connection.get_host_view()

    async def run_row(self, registry: RegistryAddress, row: Mapping[str, Any]) -> Outcome:
        """One rollout of ``row`` (which carries its rollout id). Only a request that makes no sense raises."""
        agent = find_agent_name(row) or ""
        body = _encoded(row)
        async with self._connections.connected(registry) as connection:
            view = await connection.get_host_view()
            call = _AgentCall(connection, agent, agent_url(view, agent, registry))
            needed = view.needed_by(agent)
            with connection.death_watch.watching(needed) as death:
                reply = asyncio.create_task(call.run(str(row[ROLLOUT_ID]), body))
                try:
                    either: set[asyncio.Future[Any]] = {reply, death}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    outcome = reply.result() if reply.done() else Outcome(failure=death.result())
                finally:
                    reply.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reply
            return await _with_cause(outcome, connection, needed)

    async def aggregate_metrics(
        self, registry: RegistryAddress, agent: str, verify_responses: Iterable[Mapping[str, Any]]
    ) -> dict[str, Any] | Failure:
        """The agent's own summary of these replies, or why there is none."""
        with tempfile.TemporaryFile() as body:
            write_aggregate_body(body, (json.dumps(reply).encode() for reply in verify_responses))
            async with self._connections.connected(registry) as connection:
                url = agent_url(await connection.get_host_view(), agent, registry)
                return await _AgentCall(connection, agent, url).aggregate(body)

    async def load_records(self, registry: RegistryAddress, rollout_id: str) -> Gathered:
        """What the servers have recorded of a rollout; ``ConfigError`` when they have nothing."""
        async with self._connections.connected(registry) as connection:
            return await load_records(connection.client, rollout_id)

    async def load_recorded_rollouts(self, registry: RegistryAddress) -> list[RecordedRollout]:
        """The rollouts that the servers have records of, the latest first; ``ConfigError`` when there are none."""
        async with self._connections.connected(registry) as connection:
            return await load_recorded_rollouts(connection.client)

    async def aclose(self) -> None:
        """Give up what this event loop still has open. The helper can be used again afterwards."""
        await self._connections.aclose()


class _AgentCall:
    """HTTP calls to one agent; what breaks becomes a ``Failure``."""

    def __init__(self, connection: RegistryConnection, agent: str, url: str) -> None:
        self._connection = connection
        self._agent = agent
        self._url = url

    async def run(self, rollout_id: str, body: bytes) -> Outcome:
        answer = await self._run_correlated(rollout_id, body)
        if isinstance(answer, Failure):
            return Outcome(failure=answer)
        return judge_reply(self._agent, *answer)

    async def aggregate(self, body: IO[bytes]) -> dict[str, Any] | Failure:
        answer = await self._post("/aggregate_metrics", body)
        if isinstance(answer, Failure):
            return answer
        return judge_metrics(self._agent, *answer)

    async def _run_correlated(self, rollout_id: str, body: bytes) -> tuple[int, bytes] | Failure:
        """``/run`` below the rollout's own prefix, so that every server behind the agent knows the rollout.

        An agent written elsewhere may not have that route. It says 404 before it has done anything, and is
        called by the plain route from then on; the row carries the id there too.
        """
        if self._url in self._connection.memory.plain_agents:
            return await self._post("/run", body)
        answer = await self._post(f"/ng-rollout/{rollout_id}/run", body)
        if isinstance(answer, Failure):
            return answer
        if answer[0] != 404 or self._url in self._connection.memory.correlating_agents:
            self._connection.memory.correlating_agents.add(self._url)
            return answer
        self._connection.memory.plain_agents.add(self._url)
        return await self._post("/run", body)

    async def _post(self, path: str, body: bytes | IO[bytes]) -> tuple[int, bytes] | Failure:
        import aiohttp

        headers = {"Content-Type": "application/json", **self._connection.address.headers}
        try:
            async with self._connection.rollouts.post(
                self._url + path, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            return _connection_failure(error, self._agent, self._url)


async def _with_cause(outcome: Outcome, connection: RegistryConnection, needed: frozenset[str]) -> Outcome:
    """The outcome, or the death of a server where that is what it comes from."""
    failure = outcome.failure
    if failure is None or failure.ends_the_run:
        return outcome
    if failure.failure_class == CONNECTION_LOST:
        within_s = CAUSE_OF_BROKEN_CONNECTION_S
    elif failure.status is not None and failure.status >= 500:
        within_s = CAUSE_OF_SERVER_ERROR_S
    else:
        return outcome
    cause = await connection.death_watch.find_cause(needed, within_s)
    return outcome if cause is None else Outcome(failure=cause)


def agent_url(view: HostView, agent: str, registry: RegistryAddress) -> str:
    """Where an agent is dialled; ``ConfigError`` when the registry does not serve it."""
    url = view.agent_urls.get(agent)
    if url is not None:
        return url
    known = sorted(view.agent_urls)
    near = difflib.get_close_matches(agent, known, n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else f"It serves {', '.join(known) or 'no agent'}."
    raise ConfigError(
        f"The rows ask for agent {agent!r}, which the registry at {registry.url} does not serve. {hint} "
        "Plan and serve the same benchmark."
    )


def _encoded(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"A row holds a value that JSON cannot carry: {error}.") from error


def _connection_failure(error: Exception, agent: str, url: str) -> Failure:
    inner = getattr(error, "os_error", None) or error
    if getattr(inner, "errno", None) in (errno.EMFILE, errno.ENFILE):
        reason = f"could not be called: too many files are open here. Raise `ulimit -n` ({inner})."
    elif isinstance(error, TimeoutError):
        reason = f"at {url} did not accept a connection in time."
    else:
        reason = f"at {url} broke the connection or refused it: {inner or type(inner).__name__}."
    return Failure(CONNECTION_LOST, reason, agent, retryable=True)
