"""Which engine to talk to: the one that the ``docker`` command would, and what to say when it does not answer."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nemo_gym.containers.engine import Endpoint
from nemo_gym.errors import EngineUnavailableError

DEFAULT_SOCKET = "unix:///var/run/docker.sock"


def find_endpoint(environ: Mapping[str, str]) -> Endpoint:
    """The engine named by ``DOCKER_HOST``, else ``DOCKER_CONTEXT``, else the current docker context, else a
    rootless engine's socket where only that exists, else the default socket.

    Raises ``EngineUnavailableError`` when a context is named that does not exist or cannot be read, and when the
    address is none.
    """
    if host := environ.get("DOCKER_HOST"):
        return _endpoint(host, "DOCKER_HOST")
    name, url = _context(environ)
    if url:
        return _endpoint(url, f"context '{name}'")
    rootless = f"{environ.get('XDG_RUNTIME_DIR', '')}/docker.sock"
    if not Path("/var/run/docker.sock").exists() and rootless.startswith("/run") and Path(rootless).exists():
        return _endpoint(f"unix://{rootless}", "rootless socket")
    return _endpoint(DEFAULT_SOCKET, "default")


def _context(environ: Mapping[str, str]) -> tuple[str, str | None]:
    from docker.context import ContextAPI
    from docker.context.config import get_current_context_name

    name = environ.get("DOCKER_CONTEXT") or get_current_context_name() or "default"
    if name == "default":
        return name, None
    try:
        context = ContextAPI.get_context(name)
    except Exception as error:  # the SDK raises just that for a file it cannot read
        raise EngineUnavailableError(
            f"The docker context {name!r} cannot be read ({_shortened(str(error))}). Make it anew with "
            f"`docker context rm {name}` and `docker context create`, or choose another with `docker context use NAME`."
        ) from error
    if context is None:
        raise EngineUnavailableError(
            f"The docker context {name!r} does not exist. List contexts with `docker context ls`, choose one with "
            "`docker context use NAME`, or unset DOCKER_CONTEXT."
        )
    return name, str(context.Host)


def _endpoint(url: str, source: str) -> Endpoint:
    try:
        parts = urlsplit(url if "://" in url else f"tcp://{url}")
        host = parts.hostname or ""
    except ValueError as error:
        raise EngineUnavailableError(
            f"{url!r} ({source}) is no address of a Docker engine ({error}). "
            "One looks like unix:///var/run/docker.sock, tcp://HOST:2376 or ssh://USER@HOST."
        ) from error
    if parts.scheme in ("unix", "npipe", "http+unix"):
        return Endpoint(url=url, source=source, dial_host="127.0.0.1", is_local=True)
    is_local = _is_loopback(host)
    return Endpoint(url=url, source=source, dial_host="127.0.0.1" if is_local else host, is_local=is_local)


def _is_loopback(host: str) -> bool:
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def pinned_environ(endpoint: Endpoint, environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` that leads a process to this engine later, in another folder, whatever context is current then."""
    pinned = dict(environ)
    if endpoint.source.startswith("context"):
        pinned["DOCKER_CONTEXT"] = _context_name(endpoint)
    elif endpoint.source != "DOCKER_HOST":
        pinned["DOCKER_HOST"] = endpoint.url
        for key in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):  # meant for another engine: a socket has none
            pinned.pop(key, None)
    for key in ("DOCKER_CERT_PATH", "DOCKER_CONFIG"):
        if pinned.get(key):
            pinned[key] = str(Path(pinned[key]).absolute())
    return pinned


def _context_name(endpoint: Endpoint) -> str:
    return endpoint.source.split("'")[1]


def tls_config(environ: Mapping[str, str]) -> Any:
    """TLS material as ``docker`` reads it: ``DOCKER_TLS_VERIFY`` and ``DOCKER_CERT_PATH``; False for none."""
    import docker.tls

    cert_path = environ.get("DOCKER_CERT_PATH") or ""
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    if not cert_path and not verify:
        return False
    folder = Path(cert_path or Path.home() / ".docker")
    return docker.tls.TLSConfig(
        client_cert=(str(folder / "cert.pem"), str(folder / "key.pem")),
        ca_cert=str(folder / "ca.pem"),
        verify=verify,
    )


def context_tls(endpoint: Endpoint) -> Any:
    """TLS material of the docker context that named the endpoint; False for none."""
    from docker.context import ContextAPI

    if not endpoint.source.startswith("context"):
        return False
    context = ContextAPI.get_context(_context_name(endpoint))
    return (context.TLSConfig or False) if context is not None else False


def unreachable_message(endpoint: Endpoint, error: BaseException) -> str:
    """What was needed, what was found, and what to type, for an engine that does not answer."""
    needed = f"A Docker engine is needed, and none answers at {endpoint.url} ({endpoint.source})."
    text = str(error)
    if "Permission denied" in text:
        remedy = (
            "This user may not use its socket. Type `sudo usermod -aG docker $USER`, log in again, and retry; or use "
            "a rootless engine."
        )
    elif endpoint.source == "DOCKER_HOST":
        remedy = "Check the address in DOCKER_HOST, or `unset DOCKER_HOST` to use this machine's own engine."
    elif endpoint.source.startswith("context"):
        remedy = "Check it with `docker context ls`, or choose another with `docker context use NAME`."
    elif sys.platform == "darwin" or os.name == "nt":
        remedy = "Start Docker Desktop, wait until it says that it is running, and retry."
    else:
        remedy = (
            "Start it with `sudo systemctl start docker` (or `scripts/engine` in a checkout); where it is not "
            "installed, `sudo apt-get install docker.io` on Debian and Ubuntu."
        )
    return f"{needed}\n{remedy}\n(The connection failed with {type(error).__name__}: {_shortened(text)})"


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "..."
