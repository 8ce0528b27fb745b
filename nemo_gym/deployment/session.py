"""One session's life: everything it creates, in the order it is created, and its complete removal."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.config.redaction import find_secrets, redact_text
from nemo_gym.containers import ports, reaper, relay
from nemo_gym.containers.deaths import Death, DeathWatch
from nemo_gym.containers.docker_engine import DockerEngine, published_port
from nemo_gym.containers.engine import NetworkState, Stdin
from nemo_gym.containers.keeper import Keeper
from nemo_gym.containers.labels import Owner, new_session_id, selector, session_labels
from nemo_gym.containers.readiness import (
    Deadlines,
    NotReadyError,
    NotReadyReason,
    Probe,
    wait_until_answering,
    wait_until_ready,
)
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.deployment import failures
from nemo_gym.deployment.registry_feed import RegistryFeed
from nemo_gym.deployment.server_images import ensure_server_images
from nemo_gym.deployment.topology import REGISTRY, Topology, bootstrap_line, container_specs, container_view
from nemo_gym.errors import PortTakenError

logger = logging.getLogger(__name__)

SERVER_READY_TIMEOUT_S = 120.0
ENDPOINT_READY_TIMEOUT_S = 60.0
_PARALLEL_STARTS = 5


class _Cancelled(Exception):
    """This start is being given up; whoever gave it up has the reason."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready, and where it is reached from the caller."""

    name: str
    server_type: str
    implementation: str
    container_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """How long one phase took, in seconds since the call; ``server`` is empty for the session's own phases."""

    phase: str
    server: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RunningSession:
    """A session that serves."""

    session_id: str
    registry_server: BaseServerConfig
    servers: tuple[RunningServer, ...]
    timeline: tuple[PhaseTime, ...]


@dataclass(slots=True)
class _Clock:
    """The timeline of one start."""

    begin: float = field(default_factory=time.monotonic)
    phases: list[PhaseTime] = field(default_factory=list)

    @contextlib.contextmanager
    def measure(self, phase: str, server: str = "") -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            self.phases.append(PhaseTime(phase, server, started - self.begin, ended - self.begin))
            logger.debug("%s%s: %.3f s", f"{server}: " if server else "", phase, ended - started)


class Session:
    """One session's life. ``stop`` may be called at any moment, also while ``start`` is still under way."""

    def __init__(self, engine: DockerEngine, topology: Topology, port: int | None, port_option: str) -> None:
        self._engine = engine
        self._topology = topology
        self._port = port
        self._port_option = port_option
        self.session_id = new_session_id()
        self._secret = secrets.token_hex(32)
        self._known_secrets = {*find_secrets(topology.config), self._secret}
        self._clock = _Clock()
        self._cancelled = threading.Event()
        self._pool = ThreadPoolExecutor(
            max_workers=len(topology.servers) + 1, thread_name_prefix=f"nemo-gym-{self.session_id}"
        )
        self._starting = threading.Semaphore(_PARALLEL_STARTS)
        self._keeper: Keeper | None = None
        self._watch: DeathWatch | None = None
        self._feed: RegistryFeed | None = None
        self._relays: dict[tuple[str, int], tuple[str, int]] = {}
        timeout = topology.config.get("server_ready_timeout_seconds")
        endpoint_timeout = topology.config.get("model_endpoint_readiness_timeout_seconds")
        self._deadlines = Deadlines(
            server_s=float(SERVER_READY_TIMEOUT_S if timeout is None else timeout),
            endpoint_s=float(ENDPOINT_READY_TIMEOUT_S if endpoint_timeout is None else endpoint_timeout),
        )

    # -- start -------------------------------------------------------------------------------------------------

    def start(self, search_dirs: Sequence[str]) -> RunningSession:
        """Bring everything up. Whatever is raised, ``stop`` cleans up after it."""
        engine, topology = self._engine, self._topology
        with self._clock.measure("sweep"):
            swept = reaper.sweep(engine)
        if swept.unjudged:
            logger.info("left alone, owner unknown: sessions %s", ", ".join(swept.unjudged))
        with self._clock.measure("images"):
            images = ensure_server_images(engine, topology, search_dirs)
        owner = Owner.current()
        labels = session_labels(self.session_id, owner)
        logger.info("starting %d containers, session %s", len(topology.servers) + 1, self.session_id)
        # from here on there is something to remove, and somebody to do it should this process be killed
        self._keeper = Keeper.start(self.session_id)
        with self._clock.measure("network"):
            self._watch = DeathWatch(engine, selector(self.session_id))
            network = engine.create_network(f"nemo-gym-{self.session_id}", labels)
            self._open_relays(network)
        specs = container_specs(
            topology,
            session_id=self.session_id,
            network=network.name,
            labels=labels,
            images=images,
            registry_port=self._port,
        )
        with self._clock.measure("servers"):
            running = self._start_all(specs)
        registry, *servers = running
        self._open_registry(registry, servers)
        return RunningSession(
            session_id=self.session_id,
            registry_server=BaseServerConfig(host=registry.host, port=registry.port),
            servers=tuple(servers),
            timeline=tuple(self._clock.phases),
        )

    def _open_relays(self, network: NetworkState) -> None:
        listeners = []
        for host, port in self._topology.loopback_targets():
            target = relay.Target("127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host, port)
            listener = relay.bind_listener(network.gateway, target)
            listeners.append((listener, target))
            self._relays[host, port] = (network.gateway, listener.getsockname()[1])
        if self._keeper is not None:
            self._keeper.carry(listeners, network.subnet)

    def _start_all(self, specs: Sequence[ContainerSpec]) -> list[RunningServer]:
        """Start every container in parallel, and wait for all of them or for the first failure."""
        starts = [self._pool.submit(self._start_one, spec) for spec in specs]
        _, pending = wait(starts, return_when=FIRST_EXCEPTION)
        if pending:
            self._cancel()
            wait(starts)
        errors = [error for start in starts if (error := start.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, _Cancelled)):
            raise error
        return [start.result() for start in starts]

    def _start_one(self, spec: ContainerSpec) -> RunningServer:
        server = spec.alias
        began = time.monotonic()
        with self._starting:
            self._check_cancelled()
            with self._clock.measure("create", server):
                container_id = self._engine.create_container(spec)
                stdin = self._engine.open_stdin(container_id)
            self._check_cancelled()
            try:
                with self._clock.measure("start", server):
                    self._start_container(container_id)
                stdin.send(self._bootstrap(server))
            except BaseException:
                stdin.close()
                raise
        self._keep_or_close(server, stdin)
        with self._clock.measure("ready", server):
            return self._wait_ready(spec, container_id, began)

    def _keep_or_close(self, server: str, stdin: Stdin) -> None:
        if server == REGISTRY:
            self._feed = RegistryFeed(stdin)
        else:
            stdin.close()

    def _start_container(self, container_id: str) -> None:
        try:
            self._engine.start_container(container_id)
        except PortTakenError as error:
            if self._port is None:
                raise
            raise ports.port_taken_error(self._engine, self._port, self._port_option) from error

    def _bootstrap(self, server: str) -> bytes:
        common = {"session_id": self.session_id, "server_name": server, "session_secret": self._secret}
        if server == REGISTRY:
            return bootstrap_line(config={}, awaited=self._topology.names, **common)
        served = next(found for found in self._topology.servers if found.name == server)
        return bootstrap_line(config=container_view(self._topology, served, self._relays), **common)

    def _wait_ready(self, spec: ContainerSpec, container_id: str, began: float) -> RunningServer:
        assert self._watch is not None
        stop = self._watch.watch(container_id)
        if self._cancelled.is_set():
            stop.set()
        port = published_port(self._engine, container_id)
        host = self._engine.endpoint.dial_host
        try:
            if port is None:
                raise NotReadyError(NotReadyReason.LATE, "the engine published no port for it")
            probe = Probe(host, port, spec.alias, self.session_id)
            wait_for = wait_until_answering if spec.alias == REGISTRY else wait_until_ready
            wait_for(probe, self._deadlines, stop)
        except NotReadyError as error:
            raise self._failure(spec.alias, container_id, began, error) from None
        served = next((s.instance for s in self._topology.servers if s.name == spec.alias), None)
        return RunningServer(
            name=spec.alias,
            server_type=served.server_type if served else REGISTRY,
            implementation=served.implementation if served else REGISTRY,
            container_id=container_id,
            host=host,
            port=port,
        )

    def _failure(self, server: str, container_id: str, began: float, error: NotReadyError) -> Exception:
        assert self._watch is not None
        state = self._engine.inspect_container(container_id)
        death = self._watch.find_death(container_id)
        if death is None and state.is_dead:
            death = Death(container_id, state.exit_code, state.oom_killed, state.error)
        if death is None and error.reason is NotReadyReason.STOPPED:
            return _Cancelled()
        served = next((s.instance.server_type for s in self._topology.servers if s.name == server), REGISTRY)
        failed = failures.FailedServer(
            name=server,
            server_type=served,
            phase="ready",
            elapsed_s=time.monotonic() - began,
            log=redact_text(self._engine.read_log(container_id), self._known_secrets),
        )
        if death is not None:
            return failures.died(failed, death)
        return failures.not_ready(failed, error, self._as_the_caller_sees)

    def _as_the_caller_sees(self, text: str) -> str:
        """A relay's address, which means nothing to the user, as the loopback endpoint that it stands for."""
        for (host, port), (relay_host, relay_port) in self._relays.items():
            relayed = f"{relay_host}:{relay_port}"
            if relayed in text and not _is_listening(host, port):
                text += f" (nothing listens on {host}:{port} on this machine)"
            text = text.replace(relayed, f"{host}:{port}")
        return text

    def _open_registry(self, registry: RunningServer, servers: Sequence[RunningServer]) -> None:
        """Give the registry the host view, see that it is ready, and let it hear of every death from now on."""
        assert self._feed is not None
        assert self._watch is not None
        with self._clock.measure("host view", REGISTRY):
            self._feed.send_host_view(self._topology, {s.name: (s.host, s.port) for s in [registry, *servers]})
            probe = Probe(registry.host, registry.port, REGISTRY, self.session_id)
            try:
                wait_until_ready(probe, self._deadlines, self._watch.watch(registry.container_id))
            except NotReadyError as error:
                raise self._failure(REGISTRY, registry.container_id, self._clock.begin, error) from None
        names = {server.container_id: server.name for server in servers}
        feed = self._feed
        self._watch.notify(lambda death: feed.send_death(names.get(death.container_id, ""), death))

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _Cancelled

    def _cancel(self) -> None:
        self._cancelled.set()
        if self._watch is not None:
            self._watch.give_up()

    # -- stop --------------------------------------------------------------------------------------------------

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
            last_to_first.callback(self._pool.shutdown, wait=True, cancel_futures=True)

    def _remove(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            reaper.remove_session(self._engine, self.session_id)
        except BaseException:
            keeper.abandon()  # it goes on trying
            raise
        keeper.release()
        logger.debug("session %s is removed", self.session_id)


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
