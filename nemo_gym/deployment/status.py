"""Read running sessions back from the engine, by labels alone, and stop them: from any shell, whoever started them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

from nemo_gym.containers import reaper
from nemo_gym.containers.deaths import Death, DeathWatch
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine import ContainerEngine, ContainerState
from nemo_gym.containers.labels import (
    BENCHMARK,
    DETACHED,
    PUBLISHED_HOST,
    SERVER,
    SERVER_TYPE,
    SESSION,
    Liveness,
    Owner,
    liveness,
    selector,
)
from nemo_gym.deployment.running import server_url
from nemo_gym.deployment.settings import STOP_GRACE_S
from nemo_gym.deployment.topology import REGISTRY
from nemo_gym.errors import ConfigError, EngineError, EngineNotFoundError, EngineUnavailableError, TeardownError

_KEEPER_PATIENCE_S = 15.0
_STOPPED_TOGETHER_S = 2.0
"""Servers that end within this time of each other were ended by the same hand."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server's container. ``host`` and ``port`` are None while it is not reached from outside."""

    name: str
    server_type: str
    container_id: str
    state: str
    exit_code: int | None
    oom_killed: bool
    host: str | None
    port: int | None
    started_at: str

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def url(self) -> str | None:
        """Where it answers, for those who are outside."""
        return None if self.host is None or self.port is None else server_url(self.host, self.port)


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session as its labels tell of it; ``owner`` is the process it ends with, the keeper of a detached one."""

    session_id: str
    benchmark: str
    detached: bool
    owner: Owner | None
    liveness: Liveness
    registry: ServerStatus | None
    servers: tuple[ServerStatus, ...]

    @property
    def everything(self) -> tuple[ServerStatus, ...]:
        """The registry, where it is still there, and the servers."""
        return self.servers if self.registry is None else (self.registry, *self.servers)


@contextlib.contextmanager
def connected(environ: Mapping[str, str]) -> Iterator[ContainerEngine]:
    """The engine that ``environ`` leads to. Raises ``EngineUnavailableError``."""
    engine = DockerEngine.connect(environ)
    try:
        yield engine
    finally:
        engine.close()


# -- reading -------------------------------------------------------------------------------------------------------


def read_sessions(engine: ContainerEngine) -> list[SessionStatus]:
    """Every session that has anything on the engine, in the order of their ids."""
    labels: dict[str, Mapping[str, str]] = {}
    servers: dict[str, list[ServerStatus]] = {}
    for found in engine.list_network_labels(SESSION):  # of a session that starts or ends there may be no more
        labels.setdefault(found[SESSION], found)
    for listed in engine.list_containers(SESSION):
        session_id = listed.labels[SESSION]
        labels.setdefault(session_id, listed.labels)
        with contextlib.suppress(EngineNotFoundError):  # removed since it was listed
            state = engine.inspect_container(listed.id)
            servers.setdefault(session_id, []).append(_server_status(state, engine.endpoint.dial_host))
    return [
        _session_status(session_id, labels[session_id], servers.get(session_id, [])) for session_id in sorted(labels)
    ]


def _server_status(state: ContainerState, dial_host: str) -> ServerStatus:
    return ServerStatus(
        name=state.labels.get(SERVER, state.name),
        server_type=state.labels.get(SERVER_TYPE, ""),
        container_id=state.id,
        state=state.status,
        exit_code=state.exit_code,
        oom_killed=state.oom_killed,
        host=None if state.host_port is None else state.labels.get(PUBLISHED_HOST) or dial_host,
        port=state.host_port,
        started_at="" if state.started_at.startswith("0001-") else state.started_at,
    )


def _session_status(session_id: str, labels: Mapping[str, str], found: Sequence[ServerStatus]) -> SessionStatus:
    owner = Owner.from_labels(labels)
    return SessionStatus(
        session_id=session_id,
        benchmark=labels.get(BENCHMARK, ""),
        detached=labels.get(DETACHED) == "true",
        owner=owner,
        liveness=Liveness.UNKNOWN if owner is None else liveness(owner),
        registry=next((server for server in found if server.name == REGISTRY), None),
        servers=tuple(sorted((s for s in found if s.name != REGISTRY), key=lambda server: server.name)),
    )


def find_session(sessions: Sequence[SessionStatus], wanted: str | None) -> SessionStatus:
    """The session with this id or the only one whose id begins so; without ``wanted``, the only one there is.

    Raises ``ConfigError`` that lists those there are.
    """
    if not sessions:
        raise ConfigError(
            "No session is on this engine. `gym env start --benchmark NAME` starts one; a session on another engine is "
            "found with the DOCKER_HOST or docker context that it was started with."
        )
    matching = [found for found in sessions if found.session_id.startswith(wanted or "")]
    if len(matching) == 1:
        return matching[0]
    if wanted is None:
        problem = f"There are {len(sessions)} sessions; say which one is meant."
    elif matching:
        problem = f"{len(matching)} sessions begin with {wanted!r}; give more of the id."
    else:
        problem = f"There is no session {wanted!r}."
    listed = "\n".join(f"  {described(found)}" for found in matching or sessions)
    raise ConfigError(f"{problem} On this engine:\n{listed}")


def described(session: SessionStatus) -> str:
    """One line of text: which session, of what, and whose."""
    return f"{session.session_id}  {session.benchmark or '(no benchmark)'}, {describe_owner(session)}"


def describe_owner(session: SessionStatus) -> str:
    """Whose session it is, and whether that process lives."""
    if session.owner is None:
        return "its owner is not told by its labels"
    how = "detached, kept by" if session.detached else "of"
    where = session.owner.host.partition("/")[0]
    return f"{how} pid {session.owner.pid} on {where} ({session.liveness.value})"


# -- stopping ------------------------------------------------------------------------------------------------------


def check_stoppable(session: SessionStatus) -> None:
    """Raise ``ConfigError`` when nobody here can tell whether the session's owner still uses it."""
    if session.liveness is not Liveness.UNKNOWN:
        return
    raise ConfigError(
        f"Session {session.session_id} ({describe_owner(session)}) was started on another machine or in another "
        "container, so that from here nobody can tell whether its owner still uses it; stopping it would fail the work "
        "under way there. Stop it where it was started, or type "
        f"`gym env stop --force {session.session_id}`."
    )


def stop_session(
    engine: ContainerEngine, session: SessionStatus, *, force: bool = False, grace_s: float = STOP_GRACE_S
) -> None:
    """Remove everything of a session, prove it, and see its keeper off when it is a detached one.

    ``grace_s``: seconds its servers get to end by themselves, all at once. Raises what ``check_stoppable`` does, unless
    ``force`` is set, and ``TeardownError`` when something stays.
    """
    if not force:
        check_stoppable(session)
    _stop_servers(engine, [server.container_id for server in session.servers if server.is_running], round(grace_s))
    reaper.remove_session(engine, session.session_id)
    if session.detached and session.owner is not None and session.liveness is Liveness.ALIVE:
        _await_keeper(session.session_id, session.owner)


def _stop_servers(engine: ContainerEngine, container_ids: Sequence[str], grace_s: int) -> None:
    """Ask servers to end; the registry comes last, as its end makes the session's owner remove the others at once."""

    def stop(container_id: str) -> None:
        with contextlib.suppress(EngineError):  # whatever it is, the removal meets it again
            engine.stop_container(container_id, grace_s)

    if container_ids:
        with ThreadPoolExecutor(len(container_ids), thread_name_prefix="nemo-gym-stop") as pool:
            list(pool.map(stop, container_ids))


def _await_keeper(session_id: str, keeper: Owner) -> None:
    """A keeper ends once it sees its registry gone."""
    retrying = Retrying(
        retry=retry_if_result(lambda found: found is Liveness.ALIVE),
        wait=wait_exponential(multiplier=0.01, max=0.25),
        stop=stop_after_delay(_KEEPER_PATIENCE_S),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    if retrying(liveness, keeper) is Liveness.ALIVE:
        raise TeardownError(
            f"Session {session_id} is removed, but its keeper (pid {keeper.pid}) has not ended after "
            f"{_KEEPER_PATIENCE_S:.0f} s. End it with `kill -9 {keeper.pid}`.",
            left=[f"process {keeper.pid}"],
        )


# -- waiting -------------------------------------------------------------------------------------------------------


def wait_until_over(engine: ContainerEngine, session_id: str) -> str:
    """Wait until a session has no registry any more, and return a sentence that says why.

    Signals interrupt it in the main thread.
    """
    watch = DeathWatch(engine, selector(session_id))
    try:
        registry = next((c for c in engine.list_containers(selector(session_id)) if _is_registry(c)), None)
        if registry is None:
            return _stopped(session_id)
        over = watch.watch(registry.id)
        death = _past_death(engine, registry.id)
        if death is None:
            over.wait()
            death = watch.find_death(registry.id)
    finally:
        watch.close()
    return _why_it_is_over(engine, session_id, death)


def _is_registry(container: ContainerState) -> bool:
    return container.labels.get(SERVER) == REGISTRY


def _past_death(engine: ContainerEngine, container_id: str) -> Death | None:
    try:
        state = engine.inspect_container(container_id)
    except EngineNotFoundError:
        return Death(container_id, None, False, "the container was removed")
    return Death(container_id, state.exit_code, state.oom_killed, state.error) if state.is_dead else None


def _why_it_is_over(engine: ContainerEngine, session_id: str, death: Death | None) -> str:
    exit_code = None if death is None else death.exit_code
    if exit_code == 0 or not _others_stay(engine, session_id):  # a registry exits with 0 when it is asked to
        return _stopped(session_id)
    how = (death.error if death is not None and death.error else "") or f"exit code {exit_code}"
    if death is not None and death.oom_killed:
        how = "killed for using too much memory"
    return f"The registry of session {session_id} has died ({how}), and without it nobody finds the servers."


def _others_stay(engine: ContainerEngine, session_id: str) -> bool:
    """Whether servers go on running after the registry has ended."""
    retrying = Retrying(
        retry=retry_if_result(bool),
        wait=wait_exponential(multiplier=0.05, max=0.5),
        stop=stop_after_delay(_STOPPED_TOGETHER_S),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    try:
        return bool(retrying(_running, engine, session_id))
    except (EngineError, EngineUnavailableError):  # the engine itself is gone, as the registry's death says
        return True


def _running(engine: ContainerEngine, session_id: str) -> list[ContainerState]:
    return [found for found in engine.list_containers(selector(session_id)) if found.status == "running"]


def _stopped(session_id: str) -> str:
    return f"Session {session_id} was stopped from elsewhere (`gym env stop`, or its container engine ended)."
