"""Whether a fixed host port is free, and who holds it when it is not."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading

from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_exponential,
)

from nemo_gym.containers import reaper
from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.containers.labels import SESSION, Liveness, Owner, liveness
from nemo_gym.errors import ConfigError, PortTakenError

_PORT_PATIENCE_S = 30.0
_HOLDER_PATIENCE_S = 3.0
_ENGINES_PROXIES = {"docker-proxy", "rootlesskit", "rootlessport", "com.docker.backend"}
"""What listens on the host for a published port: to stop it is no remedy, and it is the container that counts."""


def check_port_free(engine: ContainerEngine, address: str, port: int, option: str) -> None:
    """Raise ``ConfigError`` that names the holder when ``port`` is in use on this host or on the engine.

    Also when ports are published on this machine and ``address`` is none of its own. Only a first look: whoever takes
    the port between it and the start makes the engine refuse that.
    """
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise ConfigError(f"{option} must be a TCP port from 1 to 65535, and is {port!r}.")
    if not _is_taken(engine, address, port):
        return
    # by a session of ours whose owner is dead, perhaps: this start would sweep that one anyway
    if not reaper.sweep(engine).removed or _is_taken(engine, address, port):
        raise port_taken_error(engine, address, port, option)


def start_on_free_port(engine: ContainerEngine, container_id: str, cancelled: threading.Event) -> None:
    """Start a container whose host port the engine chooses.

    An engine tries some ports in a row and gives up when others hold all of them; asked again, it goes on from there.
    Raises ``PortTakenError`` when none was found in time, or once ``cancelled`` is set.
    """
    Retrying(
        retry=retry_if_exception_type(PortTakenError),
        wait=wait_exponential(multiplier=0.05, max=1.0),
        stop=stop_any(stop_after_delay(_PORT_PATIENCE_S), stop_when_event_set(cancelled)),
        sleep=sleep_using_event(cancelled),
        reraise=True,
    )(engine.start_container, container_id)


def port_taken_error(engine: ContainerEngine, address: str, port: int, option: str) -> ConfigError:
    """The error for a taken port: who holds it, as far as that can be found out, and what to do."""
    # the engine listens for a container some tenths of a second before it lists that as running
    look = Retrying(
        retry=retry_if_result(lambda found: found is None),
        wait=wait_exponential(multiplier=0.02, max=0.2),
        stop=stop_after_delay(_HOLDER_PATIENCE_S),
        retry_error_callback=lambda _: None,
    )
    found = look(lambda: _container_holder(engine, address, port) or _process_holder(address, port))
    holder, remedy = found or ("another process or container", "Stop it, or choose another port.")
    return ConfigError(f"{option} {port} is in use by {holder}. {remedy}")


def _is_taken(engine: ContainerEngine, address: str, port: int) -> bool:
    if _container_holder(engine, address, port) is not None:
        return True
    if not engine.endpoint.is_local:
        return False
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # as the engine does: connections in TIME_WAIT do not count, a listener does
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            probe.listen(1)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise ConfigError(
                f"bind_address {address} is no address of this machine ({error.strerror}). Set it to one that "
                "`ip address` (or `ifconfig`) shows, to 0.0.0.0 with published_host, or leave it out: 127.0.0.1."
            ) from None
        # not one that is refused for being privileged: the engine, which is root, may take it
        return error.errno == errno.EADDRINUSE
    return False


def _overlap(one: str, other: str) -> bool:
    """Whether a listener on the one address leaves none for the other. An empty one is every address."""
    addresses = [ipaddress.ip_address(text) for text in (one, other) if text]
    addresses = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return len({*addresses}) < 2 or any(address.is_unspecified for address in addresses)


def _container_holder(engine: ContainerEngine, address: str, port: int) -> tuple[str, str] | None:
    for container in engine.list_containers(""):
        if not any(bound == port and _overlap(host, address) for host, bound in container.bindings):
            continue
        session_id = container.labels.get(SESSION)
        if session_id is None:
            return f"the container {container.name}", f"Remove it with `docker rm -f {container.name}`."
        owner = Owner.from_labels(container.labels)
        if owner is not None and liveness(owner) is Liveness.ALIVE:
            remedy = f"Stop it with `gym env stop {session_id}`."
            return f"session {session_id} of this machine (pid {owner.pid})", remedy
        return (
            f"session {session_id} (container {container.name}), whose owner is not known to live",
            f"Remove it with `gym env stop --force {session_id}`.",
        )
    return None


def _process_holder(address: str, port: int) -> tuple[str, str] | None:
    import psutil  # needed here only

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):  # other users' sockets need root on some systems
        return None
    for found in connections:
        if found.status != psutil.CONN_LISTEN or not found.laddr or found.laddr.port != port or not found.pid:
            continue
        if _overlap(found.laddr.ip, address):
            try:
                name = psutil.Process(found.pid).name()
            except psutil.Error:
                name = "a process"
            if name in _ENGINES_PROXIES:
                return None
            return f"{name} (pid {found.pid})", f"Stop it with `kill {found.pid}`, or choose another port."
    return None
