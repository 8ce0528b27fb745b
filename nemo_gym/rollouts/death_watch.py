"""Notices the death of a server within about a second, by asking the registry while calls are open.

A call to an agent may take hours, and a server behind the agent may die without any connection of ours
breaking. So, while at least one call is open, the registry is asked which servers have died.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from nemo_gym.rollouts.registry_client import (
    REGISTRY_NAME,
    DeadServer,
    RegistryClient,
    RegistryNotReadyError,
)
from nemo_gym.rollouts.replies import REGISTRY_UNREACHABLE, SERVER_DEAD, Failure

POLL_INTERVAL_S: Final = 0.5
HURRIED_INTERVAL_S: Final = 0.1
LOST_AFTER_POLLS: Final = 4
LOST_AFTER_S: Final = 3.0


class DeathWatch:
    """Watches one registry from one event loop. It polls only while someone is watching."""

    def __init__(self, client: RegistryClient, registry_url: str) -> None:
        self._client = client
        self._registry_url = registry_url
        self._needed: dict[asyncio.Future[Failure], frozenset[str]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._hurried = 0
        self._hurry = asyncio.Event()
        self._keeps_list = True
        self._failed_polls = 0
        self._failing_since = 0.0

    @contextlib.contextmanager
    def watching(self, servers: frozenset[str]) -> Iterator[asyncio.Future[Failure]]:
        """A future that gets a failure when one of ``servers`` has died or the registry is gone."""
        death: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._needed[death] = servers
        if self._poller is None and self._keeps_list:
            self._poller = asyncio.create_task(self._poll())
        try:
            yield death
        finally:
            del self._needed[death]
            death.cancel()
            if not self._needed and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    async def find_cause(self, servers: frozenset[str], within_s: float) -> Failure | None:
        """The death that explains a failure seen just now: news of it may be some moments behind."""
        if not self._keeps_list:
            return None
        self._hurried += 1
        self._hurry.set()
        try:
            with self.watching(servers) as death:
                return await asyncio.wait_for(death, within_s)
        except TimeoutError:
            return None
        finally:
            self._hurried -= 1
            if not self._hurried:
                self._hurry.clear()

    async def _poll(self) -> None:
        while self._keeps_list:
            await self._pause()
            try:
                dead = await self._client.load_dead_servers()
            except RegistryNotReadyError as error:
                self._note_failed_poll(str(error))
                continue
            self._failed_polls = 0
            if dead is None:
                self._keeps_list = False
                return
            if dead:
                self._announce(dead)

    async def _pause(self) -> None:
        if self._hurry.is_set():
            await asyncio.sleep(HURRIED_INTERVAL_S)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), POLL_INTERVAL_S)

    def _note_failed_poll(self, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._failed_polls == 0:
            self._failing_since = now
        self._failed_polls += 1
        failing_s = now - self._failing_since
        if self._failed_polls < LOST_AFTER_POLLS or failing_s < LOST_AFTER_S:
            return
        reason = f"at {self._registry_url} has not answered for {failing_s:.0f} s: {why}."
        failure = Failure(REGISTRY_UNREACHABLE, reason, REGISTRY_NAME)
        for death in self._needed:
            if not death.done():
                death.set_result(failure)

    def _announce(self, dead: list[DeadServer]) -> None:
        by_name = {server.name: server for server in dead}
        for death, servers in self._needed.items():
            for name in sorted(servers & by_name.keys()):
                if not death.done():
                    death.set_result(Failure(SERVER_DEAD, by_name[name].describe(), name))
