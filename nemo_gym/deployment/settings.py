"""How a session is to be served: addresses, token, deadlines, logs, locked images.

Pure but for the lock file that the config names: from the config and what the caller gave.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config.home import expanded
from nemo_gym.config.token import NEW_TOKEN_COMMAND, token_of
from nemo_gym.containers.builds import BUILD_TIMEOUT_S
from nemo_gym.containers.engine import Endpoint
from nemo_gym.containers.image_lock import ImageLock, read_lock
from nemo_gym.containers.readiness import Deadlines
from nemo_gym.errors import ConfigError

SERVER_READY_TIMEOUT_S = 120.0
ENDPOINT_READY_TIMEOUT_S = 60.0
STOP_GRACE_S = 5.0
START_TIMEOUT_S = 60.0
_MOST_SECONDS = 100_000_000
"""Three years. Some hundred years are more than the system's timers can be told."""

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """``registry_port`` None: the engine assigns one; ``port_option`` is what the user calls it.

    ``bind_address`` is where ports are published, ``published_host`` where callers reach them, ``token`` what every
    request must carry. ``log_folder`` receives every server's log before it is removed; when ``keep_logs`` is not
    set, only those of a session that failed. ``image_lock`` is what its images are held to.
    """

    registry_port: int | None
    port_option: str
    bind_address: str
    published_host: str
    token: str | None = field(repr=False)
    deadlines: Deadlines
    stop_grace_s: float
    log_folder: Path
    keep_logs: bool
    image_lock: ImageLock | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether ports are published on the loopback of the engine's machine alone."""
        return ipaddress.ip_address(self.bind_address).is_loopback


def parse_serving_settings(
    config: Mapping[str, Any],
    endpoint: Endpoint,
    environ: Mapping[str, str],
    *,
    registry_port: int | None,
    default_registry_port: int | None,
) -> ServingSettings:
    """The settings of one session. Raises ``ConfigError`` for a value that cannot be used."""
    option, port = _registry_port(config, registry_port, default_registry_port)
    token = token_of(environ)
    bind_address = _bind_address(config, endpoint, token)
    log_folder = config.get("nemo_gym_log_dir")
    return ServingSettings(
        registry_port=port,
        port_option=option,
        bind_address=bind_address,
        published_host=_published_host(config, endpoint, bind_address),
        token=token,
        deadlines=Deadlines(
            server_s=_seconds(config, "server_ready_timeout_seconds", SERVER_READY_TIMEOUT_S),
            endpoint_s=_seconds(config, "model_endpoint_readiness_timeout_seconds", ENDPOINT_READY_TIMEOUT_S),
        ),
        stop_grace_s=_seconds(config, "server_stop_grace_seconds", STOP_GRACE_S),
        log_folder=Path(log_folder or expanded(config.get("results_dir") or "results", "results_dir") / "logs"),
        keep_logs=log_folder is not None,
        image_lock=_image_lock(config),
    )


def start_timeout_s(config: Mapping[str, Any]) -> float:
    """Seconds that one call of the engine may take, a container's start above all."""
    return _seconds(config, "server_start_timeout_seconds", START_TIMEOUT_S, least=1.0)


def build_timeout_s(config: Mapping[str, Any]) -> float:
    """Seconds that building one image may take."""
    return _seconds(config, "image_build_timeout_seconds", BUILD_TIMEOUT_S, least=1.0)


def _registry_port(
    config: Mapping[str, Any], registry_port: int | None, default_registry_port: int | None
) -> tuple[str, int | None]:
    if registry_port is not None:
        return "registry_port", _port(registry_port, "registry_port")
    head_server = config.get("head_server")
    if isinstance(head_server, Mapping) and head_server.get("port") is not None:
        return "head_server.port", _port(head_server["port"], "head_server.port")
    return "registry_port", default_registry_port


def _port(value: Any, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise ConfigError(f"{option} must be a TCP port from 1 to 65535, and is {value!r}.")
    return value


def _bind_address(config: Mapping[str, Any], endpoint: Endpoint, token: str | None) -> str:
    address = str(config.get("bind_address") or _LOOPBACK)
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise ConfigError(
            f"bind_address must be an IP address of the engine's machine, such as 0.0.0.0, and is {address!r}."
        ) from None
    if parsed.is_loopback and not endpoint.is_local:
        raise ConfigError(
            f"The engine at {endpoint.url} ({endpoint.source}) is on another machine, and servers are published on its "
            "loopback, which cannot be reached from here. Set bind_address to an address of that machine (or "
            f"0.0.0.0), and a token in the environment: `{NEW_TOKEN_COMMAND}`."
        )
    if not parsed.is_loopback and token is None:
        raise ConfigError(
            f"bind_address {address} lets other machines reach the servers, which then need a token that every "
            f"request must carry. Type `{NEW_TOKEN_COMMAND}`, and set the same value where the callers run."
        )
    return address


def _published_host(config: Mapping[str, Any], endpoint: Endpoint, bind_address: str) -> str:
    if config.get("published_host"):
        return str(config["published_host"])
    if not ipaddress.ip_address(bind_address).is_unspecified:
        return bind_address
    if not endpoint.is_local:
        return endpoint.dial_host
    raise ConfigError(
        f"bind_address {bind_address} is every address of this machine; set published_host to the one (or the name) "
        "that callers reach it at."
    )


def _image_lock(config: Mapping[str, Any]) -> ImageLock | None:
    path = config.get("image_lock")
    if path is None:
        return None
    if not isinstance(path, str) or not path:
        raise ConfigError(f"image_lock must be the path of a lock file, and is {path!r}.")
    return read_lock(expanded(path, "image_lock"))


def _seconds(config: Mapping[str, Any], key: str, default: float, least: float = 0.0) -> float:
    value = config.get(key)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= _MOST_SECONDS:  # nor is NaN
        at_least = f", at least {least:g}," if least else ""
        at_most = f", at most {_MOST_SECONDS}," if is_number and value > _MOST_SECONDS else ""
        raise ConfigError(f"{key} must be a number of seconds{at_most or at_least or ','} and is {value!r}.")
    return float(value)
