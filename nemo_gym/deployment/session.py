"""One session's life: everything it creates, in the order it is created, and its complete removal."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.config.redaction import find_secrets, redact_text
from nemo_gym.containers import ports, reaper
from nemo_gym.containers.deaths import Death, DeathWatch
from nemo_gym.containers.docker_engine import DockerEngine, published_port
from nemo_gym.containers.engine_endpoint import pinned_environ
from nemo_gym.containers.keeper import Keeper
from nemo_gym.containers.labels import Owner, new_session_id, selector, session_labels
from nemo_gym.containers.readiness import (
    Deadlines,
    NotReadyError,
    NotReadyReason,
    Probe,
    wait_until_answering,
    wait_until_any_answer,
    wait_until_ready,
)
from nemo_gym.containers.reopened_stdin import ReopenedStdin
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.deployment import failures, foreign
from nemo_gym.deployment.creations import Creations
from nemo_gym.deployment.diagnosis import Diagnosis
from nemo_gym.deployment.endpoints import config_key_of
from nemo_gym.deployment.first_lines import first_line
from nemo_gym.deployment.locked_images import ensure_locked_images, named
from nemo_gym.deployment.loopback import LoopbackRelays
from nemo_gym.deployment.registry_feed import RegistryFeed
from nemo_gym.deployment.running import Clock, RunningServer, RunningSession
from nemo_gym.deployment.server_files import load_server_files
from nemo_gym.deployment.server_logs import ServerLogs
from nemo_gym.deployment.settings import ServingSettings
from nemo_gym.deployment.topology import REGISTRY, Topology, container_specs
from nemo_gym.errors import EngineError, PortTakenError, ServerStartError

logger = logging.getLogger(__name__)

_PARALLEL_STARTS = 5
_DEATH_LOG_LINES = 5

# ports that are published on every address of this machine are on its loopback too
_DIALLED = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class _Cancelled(Exception):
    """This start is being given up; whoever gave it up has the reason."""


class Session:
    """One session's life. ``stop`` may be called at any moment, also while ``start`` is still under way.

    A detached session belongs to its keeper from the beginning: ``hand_over`` leaves it running.
    """

    def __init__(
        self, engine: DockerEngine, topology: Topology, settings: ServingSettings, *, detached: bool = False
    ) -> None:
        self._engine = engine
        self._topology = topology
        self._settings = settings
        self._detached = detached
        self.session_id = new_session_id()
        self._secret = secrets.token_hex(32)
        self._known_secrets = {*find_secrets(topology.config), self._secret, *filter(None, [settings.token])}
        self._clock = Clock()
        self._cancelled = threading.Event()
        self._creations = Creations(len(topology.servers) + 1, f"nemo-gym-{self.session_id}")
        self._starting = threading.Semaphore(_PARALLEL_STARTS)
        self._keeper: Keeper | None = None
        self._watch: DeathWatch | None = None
        self._feed: RegistryFeed | None = None
        self._registry_port: Future[int] = Future()
        self._relays = LoopbackRelays(topology.loopback_targets())
        self._has_failed = False
        self._logs = ServerLogs(engine, self.session_id, settings.log_folder, self._redact)
        self._servers = {server.name: server for server in topology.servers}
        self._diagnosis = Diagnosis(engine, self._servers, self._redact)
        self._names: dict[str, str] = {}  # container ID -> server name, of every container created
        self._running: list[RunningServer] = []
        self._images: dict[str, str] = {}

    # -- start -------------------------------------------------------------------------------------------------

    def start(self, search_dirs: Sequence[str]) -> RunningSession:
        """Bring everything up. Whatever is raised, ``stop`` cleans up after it."""
        try:
            return self._start(search_dirs)
        except ServerStartError as error:
            self._has_failed = True
            folder = self._logs.save()
            if folder is None:
                raise
            raise failures.with_logs(error, folder) from error.__cause__

    def _start(self, search_dirs: Sequence[str]) -> RunningSession:
        self._relays.check(self._engine.endpoint)
        self._files = load_server_files(self._topology)
        with self._clock.measure("sweep"):
            swept = reaper.sweep(self._engine)
        if swept.unjudged:
            logger.info("left alone, owner unknown: sessions %s", ", ".join(swept.unjudged))
        with self._clock.measure("images"):
            images = ensure_locked_images(self._engine, self._topology, search_dirs, self._settings.image_lock)
        self._images = named(self._topology, images)
        logger.info("starting %d containers, session %s", len(self._topology.servers) + 1, self.session_id)
        # from here on there is something to remove, and somebody to do it should this process be killed
        self._keeper = Keeper.start(self.session_id, pinned_environ(self._engine.endpoint, os.environ))
        owner = Owner.of_pid(self._keeper.pid) if self._detached else Owner.current()
        labels = session_labels(
            self.session_id,
            owner,
            published_host=self._settings.published_host,
            benchmark=self._topology.benchmark_name,
            detached=self._detached,
        )
        with self._clock.measure("network"):
            self._watch = DeathWatch(self._engine, selector(self.session_id))
            create = functools.partial(reaper.create_network, self._engine)
            network = self._creations.submit(create, f"nemo-gym-{self.session_id}", labels).result()
            self._relays.open(network, self._keeper)
            internal = ""
            if self._topology.internal_names:
                name = f"nemo-gym-{self.session_id}-internal"
                internal = self._creations.submit(create, name, labels, internal=True).result().name
        specs = container_specs(
            self._topology,
            session_id=self.session_id,
            network=network.name,
            internal_network=internal,
            labels=labels,
            images=images,
            registry_port=self._settings.registry_port,
            bind_address=self._settings.bind_address,
        )
        specs = foreign.with_entries(self._engine, self._topology, specs)
        with self._clock.measure("servers"):
            self._running = self._start_all(specs)
        return self._open_registry()

    def _start_all(self, specs: Sequence[ContainerSpec]) -> list[RunningServer]:
        """Start every container in parallel, and wait for all of them or for the first failure."""
        assert self._watch is not None
        starts = [self._creations.submit(self._start_one, spec) for spec in specs]
        # also of one that was ready: nobody waits for it any more, but the others are waited for in vain
        self._watch.notify(lambda death: self._cancel())
        _, pending = wait(starts, return_when=FIRST_EXCEPTION)
        if pending:
            self._cancel()
            wait(starts)
        errors = [error for start in starts if (error := start.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, _Cancelled)):
            if isinstance(error, _Cancelled):
                self._check_nobody_died()
            raise error
        return [start.result() for start in starts]

    def _check_nobody_died(self) -> None:
        """Raise ``ServerStartError`` when a server has died after it was ready."""
        assert self._watch is not None
        for container_id, name in self._names.items():
            death = self._watch.find_death(container_id)
            if death is not None:
                raise failures.died(self._diagnosis.failed(name, "serving", self._clock.begin, container_id), death)

    def _start_one(self, spec: ContainerSpec) -> RunningServer:
        server = spec.alias
        began = time.monotonic()
        with self._starting:
            self._check_cancelled()
            with self._clock.measure("create", server), self._engine_refusals(server, "create", began):
                container_id = self._engine.create_container(spec)
                self._names[container_id] = server
                stdin = self._engine.open_stdin(container_id)
            with contextlib.ExitStack() as unless_kept:
                unless_kept.callback(stdin.close)
                self._check_cancelled()
                with self._clock.measure("start", server):
                    self._start_container(server, container_id, began)
                with self._engine_refusals(server, "start", began, container_id):
                    stdin.send(self._first_line(server))
                if server == REGISTRY:
                    unless_kept.pop_all()
                    self._feed = RegistryFeed(ReopenedStdin(self._engine, container_id, stdin))
        with self._clock.measure("ready", server):
            return self._wait_ready(spec, container_id, began)

    def _start_container(self, server: str, container_id: str, began: float) -> None:
        fixed_port = self._settings.registry_port if server == REGISTRY else None
        with self._engine_refusals(server, "start", began, container_id):
            if fixed_port is None:
                ports.start_on_free_port(self._engine, container_id, self._cancelled)
                return
            try:
                self._engine.start_container(container_id)
            except PortTakenError as error:
                address, option = self._settings.bind_address, self._settings.port_option
                raise ports.port_taken_error(self._engine, address, fixed_port, option) from error

    @contextlib.contextmanager
    def _engine_refusals(
        self, server: str, phase: str, began: float, container_id: str | None = None
    ) -> Iterator[None]:
        """What the engine refuses to do for a server is that server's failure to start, with any log it has."""
        try:
            yield
        except EngineError as error:
            self._check_cancelled()
            raise failures.refused(self._diagnosis.failed(server, phase, began, container_id), str(error)) from error

    def _first_line(self, server: str) -> bytes:
        return first_line(
            self._topology,
            server,
            self._relays.addresses,
            session_id=self.session_id,
            session_secret=self._secret,
            token=self._settings.token,
            files=self._files.get(server, {}),
        )

    # -- readiness ---------------------------------------------------------------------------------------------

    def _wait_ready(self, spec: ContainerSpec, container_id: str, began: float) -> RunningServer:
        assert self._watch is not None
        stop = self._watch.watch(container_id)
        if self._cancelled.is_set():
            stop.set()
        try:
            probe = self._probe(spec, container_id, stop)
            self._wait_of(spec.alias)(probe, self._settings.deadlines, stop)
        except NotReadyError as error:
            raise self._failure(spec.alias, container_id, began, error) from None
        served = self._servers.get(spec.alias)
        return RunningServer(
            name=spec.alias,
            server_type=served.instance.server_type if served else REGISTRY,
            implementation=served.instance.implementation if served else REGISTRY,
            container_id=container_id,
            host=None if spec.publish is None else self._settings.published_host,
            port=None if spec.publish is None else probe.port,
        )

    def _wait_of(self, server: str) -> Callable[[Probe, Deadlines, threading.Event], None]:
        if server == REGISTRY:
            return wait_until_answering
        return wait_until_any_answer if self._servers[server].is_foreign else wait_until_ready

    def _probe(self, spec: ContainerSpec, container_id: str, stop: threading.Event) -> Probe:
        """How to ask a server: at its published port, or, where it has none, through the registry."""
        port: int | None
        if spec.publish is None:
            prefix = f"/inside/{spec.alias}"
            port = self._wait_for_registry_port(stop)
        else:
            prefix = ""
            port = published_port(self._engine, container_id)
        if port is None:
            raise NotReadyError(NotReadyReason.LATE, "the engine published no port for it")
        if spec.alias == REGISTRY:
            self._registry_port.set_result(port)
        host = self._dial_host()
        return Probe(host, port, spec.alias, self.session_id, prefix=prefix, token=self._settings.token)

    def _dial_host(self) -> str:
        """Where this process reaches published ports, which need not be what other callers are told."""
        if self._engine.endpoint.is_local:
            return _DIALLED.get(self._settings.bind_address, self._settings.bind_address)
        return self._settings.published_host

    def _wait_for_registry_port(self, stop: threading.Event) -> int:
        deadline = time.monotonic() + self._settings.deadlines.server_s
        while not stop.is_set() and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                return self._registry_port.result(timeout=0.1)
        reason = NotReadyReason.STOPPED if stop.is_set() else NotReadyReason.LATE
        raise NotReadyError(reason, "the registry, through which it is asked, did not start")

    def _failure(self, server: str, container_id: str, began: float, error: NotReadyError) -> Exception:
        assert self._watch is not None
        death = self._diagnosis.find_death(container_id, self._watch)
        if death is None and error.reason is NotReadyReason.STOPPED:
            return _Cancelled()
        failed = self._diagnosis.failed(server, "ready", began, container_id)
        if death is not None:
            return failures.died(failed, death)
        return failures.not_ready(failed, error, self._relays.as_the_caller_sees, self._config_key_of(server))

    def _config_key_of(self, server: str) -> Callable[[str], str]:
        """What the user calls a server's settings."""
        served = self._servers.get(server)
        if served is None:
            return lambda setting: setting
        return functools.partial(config_key_of, self._topology.config, served.instance)

    def _open_registry(self) -> RunningSession:
        """Give the registry the host view, see that it is ready, and let it hear of every death from now on."""
        assert self._feed is not None
        assert self._watch is not None
        registry, *servers = self._running
        assert registry.host is not None
        assert registry.port is not None
        with self._clock.measure("host view", REGISTRY):
            published = [s for s in self._running if s.host is not None and s.port is not None]
            addresses = {s.name: (s.host or "", s.port or 0) for s in published}
            self._feed.send_host_view(self._topology, addresses)
            probe = Probe(self._dial_host(), registry.port, REGISTRY, self.session_id, token=self._settings.token)
            try:
                wait_until_ready(probe, self._settings.deadlines, self._watch.watch(registry.container_id))
            except NotReadyError as error:
                failure = self._failure(REGISTRY, registry.container_id, self._clock.begin, error)
                if isinstance(failure, _Cancelled):
                    self._check_nobody_died()
                raise failure from None
        self._check_nobody_died()
        self._watch.notify(self._tell_death)
        return RunningSession(
            session_id=self.session_id,
            registry_server=BaseServerConfig(host=registry.host, port=registry.port, token=self._settings.token),
            servers=tuple(servers),
            timeline=tuple(self._clock.phases),
            images=self._images,
        )

    def _tell_death(self, death: Death) -> None:
        name = self._names.get(death.container_id, death.container_id)
        self._has_failed = True
        log_tail = self._diagnosis.log_tail(death.container_id, _DEATH_LOG_LINES).strip()
        logger.warning("server %s died (exit code %s)", name, death.exit_code)
        if self._feed is not None and name != REGISTRY:
            self._feed.send_death(name, death, log_tail)

    def _redact(self, text: str) -> str:
        return redact_text(text, self._known_secrets)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _Cancelled

    def _cancel(self) -> None:
        self._cancelled.set()
        if self._watch is not None:
            self._watch.give_up()

    # -- stop --------------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Leave a detached session to its keeper, which is its owner from now on."""
        keeper, self._keeper = self._keeper, None
        assert keeper is not None
        registry, *servers = self._running
        try:
            keeper.adopt(registry.container_id, {server.container_id: server.name for server in servers})
        except BaseException:
            self._keeper = keeper
            raise

    def stop(self) -> None:
        """Remove everything and prove it. Idempotent. Raises ``TeardownError`` when something stays."""
        self._cancel()
        with contextlib.ExitStack() as last_to_first:  # each step is taken even when an earlier one fails
            last_to_first.callback(self._remove)
            if self._watch is not None:
                last_to_first.callback(self._watch.close)
            if self._feed is not None:
                last_to_first.callback(self._feed.close)
            # nothing may create a piece any more once the removal begins
            last_to_first.callback(self._creations.close)

    def _remove(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            if self._settings.keep_logs or self._has_failed:
                self._logs.save()
            grace_s = 0.0 if self._has_failed else self._settings.stop_grace_s
            reaper.remove_session(self._engine, self.session_id, grace_s=round(grace_s))
        except BaseException as error:
            keeper.abandon()
            error.add_note(f"The keeper of session {self.session_id} (pid {keeper.pid}) goes on removing it.")
            raise
        if self._creations.may_appear_late:
            keeper.abandon()
        else:
            keeper.release()
        logger.debug("session %s is removed", self.session_id)
