"""Removes everything of a session by its label, proves that nothing is left, and sweeps dead owners' sessions.

Sync and idempotent: safe to call twice, from any process, and while another one does the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_exponential

from nemo_gym.containers.engine import ContainerEngine, Leftovers, NetworkState
from nemo_gym.containers.labels import SESSION, Liveness, Owner, liveness, selector
from nemo_gym.errors import EngineError, EngineUnavailableError, NoAddressRangeError, TeardownError

logger = logging.getLogger(__name__)

_PARALLEL = 8

SWEEP_DEADLINE_S = 10.0
"""How long the remains of one dead session may hold up whoever sweeps.

An engine that was cut off in a start can lose the container and keep its endpoint: it then refuses to remove the
network until it is restarted, and every start would wait for that in vain.
"""


@dataclass(slots=True)
class SweepReport:
    """Session ids: whose remains were removed, and whose owner could not be judged from here."""

    removed: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)


def remove_session(
    engine: ContainerEngine, session_id: str, *, grace_s: int = 0, settle_s: float = 0.0, deadline_s: float = 60.0
) -> None:
    """Remove a session's containers (with their anonymous volumes), networks and volumes.

    ``grace_s``: seconds that servers get between SIGTERM and SIGKILL, all at once. Lists and removes until two
    looks in a row, at least ``settle_s`` seconds apart, find nothing: the engine goes on with a call whose caller was
    killed, and the piece it creates appears late. Raises ``TeardownError`` that names what is left after
    ``deadline_s`` seconds.
    """
    label = selector(session_id)
    if grace_s:
        running = engine.find_leftovers(label).containers
        # each may take its whole grace period: all at once, or the periods would add up
        _in_parallel(lambda container: engine.stop_container(container, grace_s), running, most=len(running))
    empty_since: float | None = None

    def look_and_remove() -> Leftovers | None:
        nonlocal empty_since
        left = engine.find_leftovers(label)
        if not left:
            if empty_since is not None and time.monotonic() - empty_since >= settle_s:
                return None
            empty_since = empty_since or time.monotonic()
            return left
        empty_since = None
        _in_parallel(engine.remove_container, left.containers)
        _in_parallel(engine.remove_network, left.networks)
        _in_parallel(engine.remove_volume, left.volumes)
        return left

    retrying = Retrying(
        retry=retry_if_result(lambda left: left is not None),
        wait=wait_exponential(multiplier=0.005, max=1.0),
        stop=stop_after_delay(deadline_s),
    )
    try:
        retrying(look_and_remove)
    except RetryError:
        left = engine.find_leftovers(label).named()
        raise TeardownError(
            f"{len(left)} pieces of session {session_id} are still on the engine after {deadline_s:.0f} s: "
            f"{', '.join(left)}. Remove them with `docker rm -fv` and `docker network rm`; a network that has 'active "
            "endpoints' and no container goes when the engine is restarted.",
            left=left,
        ) from None


def sweep(engine: ContainerEngine) -> SweepReport:
    """Remove the sessions whose owner is proven dead; leave alone, and report, those that cannot be judged."""
    labels = [container.labels for container in engine.list_containers(SESSION)]
    labels += engine.list_network_labels(SESSION)
    report = SweepReport()
    owners = {found[SESSION]: Owner.from_labels(found) for found in labels}
    for session_id, owner in owners.items():
        verdict = liveness(owner) if owner is not None else Liveness.UNKNOWN
        if verdict is Liveness.DEAD:
            logger.info("removing session %s, whose owner is gone", session_id)
            try:
                remove_session(engine, session_id, deadline_s=SWEEP_DEADLINE_S)
            except (EngineError, TeardownError) as error:
                logger.warning("session %s could not be removed: %s", session_id, error)
                continue
            report.removed.append(session_id)
        elif verdict is Liveness.UNKNOWN:
            report.unjudged.append(session_id)
    return report


def create_network(
    engine: ContainerEngine, name: str, labels: Mapping[str, str], *, internal: bool = False
) -> NetworkState:
    """Create a session's network. When no address range is left, sweep, and try once more.

    Somebody may have died since the last sweep, and each network that is left behind holds a range.
    """
    try:
        return engine.create_network(name, labels, internal=internal)
    except NoAddressRangeError:
        if not sweep(engine).removed:
            raise
        return engine.create_network(name, labels, internal=internal)


def _in_parallel(remove: Callable[[str], None], names: Iterable[str], most: int = _PARALLEL) -> None:
    """Call for each; one that fails or is lost is tried again after the next look, so it is only noted here."""
    todo = list(names)
    if not todo:
        return
    with ThreadPoolExecutor(min(most, len(todo)), thread_name_prefix="nemo-gym-remove") as pool:
        for name, done in [(name, pool.submit(remove, name)) for name in todo]:
            error = done.exception()
            if isinstance(error, EngineError | EngineUnavailableError):
                logger.debug("%s: %s", name, error)
            elif error is not None:
                raise error
