"""The servers of a run: started for it and stopped after it, or running already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nemo_gym.cli.arguments import ConfigRequest
from nemo_gym.cli.image_progress import show_image_progress
from nemo_gym.cli.output import write_whole
from nemo_gym.config.resolve import to_plain
from nemo_gym.environment.serving import serve
from nemo_gym.errors import NemoGymError
from nemo_gym.rollouts.collection import RolloutCollectionHelper, agent_url
from nemo_gym.rollouts.registry_client import HostView, RegistryAddress

if TYPE_CHECKING:
    from nemo_gym.deployment.launch import RunningSession

logger = logging.getLogger(__name__)


@dataclass
class Phases:
    """How long each part of a run took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = time.monotonic() - started

    def line(self) -> str:
        """All of it in a line."""
        total = sum(self.seconds.values())
        split = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return f"time: {split}; {total:.1f} s in all"

    def rounded(self) -> dict[str, float]:
        """To the millisecond, as files have it."""
        return {phase: round(seconds, 3) for phase, seconds in self.seconds.items()}


@dataclass(frozen=True)
class OpenServers:
    """Servers that are ready. ``timeline`` are the phases of their start, where they were started for the run."""

    registry: RegistryAddress
    timeline: list[dict[str, Any]] = field(default_factory=list)
    images: Mapping[str, str] = field(default_factory=dict)


class Servers(Protocol):
    """What a run is told of its servers before they are there."""

    config: Mapping[str, Any]
    """The resolved config, with its secrets."""
    registry_url: str | None
    """Where they are, of servers that run already."""

    def check(self, agents: list[str]) -> None:
        """``ConfigError`` when one of the agents is not among them."""

    def open(self, phases: Phases, image_lock: Path | None) -> contextlib.AbstractContextManager[OpenServers]:
        """Have them inside the block; with ``image_lock`` from no other images than the locked ones."""


class OwnServers:
    """Containers that are started for the run."""

    registry_url: str | None = None

    def __init__(self, request: ConfigRequest, registry_port: int | None) -> None:
        self._request = request
        self._registry_port = registry_port
        # A key or a model type that serving would miss is told before any data is fetched.
        self.config: Mapping[str, Any] = to_plain(request.load_for_serving())

    def check(self, agents: list[str]) -> None:
        """They are what the configuration says, and so are the rows."""

    @contextlib.contextmanager
    def open(self, phases: Phases, image_lock: Path | None) -> Iterator[OpenServers]:
        started = time.monotonic()
        overrides = dict(self._request.overrides)
        if image_lock is not None:
            overrides["image_lock"] = str(image_lock)
        serving = serve(
            self._request.serving_paths(),
            overrides,
            registry_port=self._registry_port,
            search_dirs=self._request.search_dirs,
        )
        with show_image_progress(), _measured_exit(serving, phases) as session:
            _note_start(session, time.monotonic() - started, phases)
            server = session.registry_server
            timeline = [
                {
                    "phase": part.phase,
                    "server": part.server,
                    "begin_s": round(part.begin_s, 3),
                    "end_s": round(part.end_s, 3),
                }
                for part in session.timeline
            ]
            yield OpenServers(RegistryAddress(server.host, server.port, server.token), timeline, session.images)


class RunningServers:
    """Servers that run already, here or elsewhere, and go on running afterwards."""

    def __init__(self, registry: RegistryAddress) -> None:
        self._registry = registry
        self.registry_url: str | None = registry.url
        self._view = asyncio.run(_look(registry))
        self.config = self._view.config

    def check(self, agents: list[str]) -> None:
        for agent in agents:
            agent_url(self._view, agent, self._registry)

    @contextlib.contextmanager
    def open(self, phases: Phases, image_lock: Path | None) -> Iterator[OpenServers]:
        yield OpenServers(self._registry)


async def _look(registry: RegistryAddress) -> HostView:
    helper = RolloutCollectionHelper()
    try:
        return await helper.get_host_view(registry)
    finally:
        await helper.aclose()


@contextlib.contextmanager
def images_recorded(images: Mapping[str, str], path: Path, told: Callable[[str], None]) -> Iterator[None]:
    """Write the lock file of a session's images beside the block; a run does not fail because it cannot be.

    ``told`` gets the engine's version. A lock file that is there already stays as it is.
    """

    def record() -> None:
        from nemo_gym.deployment.image_commands import connected
        from nemo_gym.deployment.locked_images import lock_images

        try:
            with connected() as engine:
                told(engine.read_state().version)
                if not path.exists():
                    write_whole(path, lock_images(engine, images).to_json())
        except NemoGymError as error:
            logger.warning("what the images hold is not recorded in %s: %s", path, error)

    if not images:
        yield
        return
    with ThreadPoolExecutor(1, thread_name_prefix="nemo-gym-image-lock") as pool:
        pool.submit(record)
        yield


@contextlib.contextmanager
def _measured_exit(
    serving: contextlib.AbstractContextManager[RunningSession], phases: Phases
) -> Iterator[RunningSession]:
    """``serving``, with the time it takes to end noted as the teardown."""
    ended: float | None = None
    try:
        with serving as session:
            try:
                yield session
            finally:
                ended = time.monotonic()
    finally:
        if ended is not None:
            phases.seconds["teardown"] = time.monotonic() - ended


def _note_start(session: RunningSession, seconds: float, phases: Phases) -> None:
    """Split what it took to serve into images and the rest."""
    images = sum(part.end_s - part.begin_s for part in session.timeline if part.phase == "images" and not part.server)
    phases.seconds["images"] = images
    phases.seconds["start"] = seconds - images
    for part in session.timeline:
        logger.debug("%s %s: %.3f s to %.3f s", part.phase, part.server or "(all)", part.begin_s, part.end_s)
