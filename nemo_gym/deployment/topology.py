"""A resolved config as the containers to run: pure, so that a test can pin the whole of it without an engine.

Two views of every address: inside the session's network a server is ``http://<server name>:8000`` (the container
view, which servers get); from the caller it is a published port (the host view, which the registry serves).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_gym.config.config_types import ServerInstance, find_server_refs, parse_server_instances
from nemo_gym.containers.labels import ROLE, SERVER, SERVER_TYPE
from nemo_gym.containers.spec import (
    CONTAINER_PORT,
    MIB,
    ContainerSpec,
    Hardening,
    HostBinding,
    Limits,
    container_name,
)
from nemo_gym.deployment.endpoints import LoopbackEndpoint, find_loopback_endpoints, rewrite_endpoints
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

REGISTRY = "registry"
"""The registry's name on the session's network, which no other server may have."""

# what a server may see of the config's own top level
_SHARED_KEYS = (
    "observability_enabled",
    "skip_verification",
    "skip_verification_reward",
    "model_endpoint_readiness_timeout_seconds",
)

# models first, so that what takes longest to be ready starts first
_START_ORDER = ("responses_api_models", "resources_servers", "responses_api_agents")

_SIZE = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}
_LEAST_MEMORY = 6 * MIB
"""Engines refuse less."""


class ContainerSettings(BaseModel):
    """The optional ``container:`` block of a server's config. Sizes are bytes, or text such as ``512m``."""

    model_config = ConfigDict(extra="forbid")

    memory: int | str = Field(default="4g")
    pids_limit: int = Field(default=512, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    tmpfs: int | str = Field(default="256m")
    shm: int | str = Field(default="64m")
    read_only: bool = True
    user: int | str | None = None
    cap_add: list[str] = Field(default_factory=list)
    no_new_privileges: bool = True


@dataclass(frozen=True, slots=True)
class ServedServer:
    """One server to run: its config entry, and what its container may take and do."""

    instance: ServerInstance
    limits: Limits
    hardening: Hardening
    endpoints: tuple[LoopbackEndpoint, ...]

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def image_key(self) -> tuple[str, str]:
        """The image folder: server type and implementation."""
        return self.instance.server_type, self.instance.implementation


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything of a session that follows from its config alone; the registry is not among ``servers``."""

    config: Mapping[str, Any]
    servers: tuple[ServedServer, ...]

    @property
    def names(self) -> list[str]:
        return [server.name for server in self.servers]

    def loopback_targets(self) -> list[tuple[str, int]]:
        """Each (host, port) on the caller's loopback that some server calls, once."""
        found = {(e.host, e.port): None for server in self.servers for e in server.endpoints}
        return list(found)


def build_topology(config: Mapping[str, Any]) -> Topology:
    """The servers of a resolved config in the order they are started.

    Raises ``ConfigError`` when there is none, a name cannot be used, or a ``container:`` block is wrong.
    """
    declared = parse_server_instances(config)
    instances = [found for found in declared if found.server_type in _START_ORDER]
    for found in declared:
        if found not in instances:
            logger.warning("server %s is left out: no image serves %s", found.name, found.server_type)
    if not instances:
        raise ConfigError(
            "The config declares no server. It needs a model, an agent and a resources server; a benchmark's "
            "config_paths usually bring them."
        )
    for instance in instances:
        _check_name(instance.name)
    instances.sort(key=lambda instance: _START_ORDER.index(instance.server_type))
    return Topology(config=config, servers=tuple(_served(instance) for instance in instances))


def _check_name(name: str) -> None:
    if name == REGISTRY:
        raise ConfigError(f"A server may not be named {REGISTRY!r}: that is the registry's own name. Rename it.")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", name):
        raise ConfigError(
            f"The server name {name!r} cannot be a host name. Use at most 63 letters, digits, '_', '-' and '.', "
            "beginning and ending with a letter or digit."
        )


def _served(instance: ServerInstance) -> ServedServer:
    try:
        settings = ContainerSettings.model_validate(instance.settings.get("container") or {})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, ('container', *e['loc'])))}: {e['msg']}" for e in error.errors())
        known = ", ".join(sorted(ContainerSettings.model_fields))
        raise ConfigError(
            f"The container settings of server {instance.name!r} are wrong: {problems}. Known keys: {known}."
        ) from error
    limits = Limits(
        memory_bytes=_size(settings.memory, instance.name, "memory", least=_LEAST_MEMORY),
        pids=settings.pids_limit,
        nano_cpus=None if settings.cpus is None else int(settings.cpus * 1e9),
        tmpfs_bytes=_size(settings.tmpfs, instance.name, "tmpfs"),
        shm_bytes=_size(settings.shm, instance.name, "shm"),
    )
    hardening = Hardening(
        read_only=settings.read_only,
        user=None if settings.user is None else str(settings.user),
        cap_add=tuple(settings.cap_add),
        no_new_privileges=settings.no_new_privileges,
    )
    return ServedServer(instance, limits, hardening, tuple(find_loopback_endpoints(instance.settings)))


def _size(value: int | str, server: str, key: str, least: int = 1) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match is not None else 0
    if size < least:  # to an engine, 0 means no limit at all
        raise ConfigError(
            f"container.{key} of server {server!r} is {value!r}; write a number of bytes of at least {least}, or one "
            "with k, m or g: 512m."
        )
    return size


# -- container view --------------------------------------------------------------------------------------------


def container_view(
    topology: Topology, server: ServedServer, relays: Mapping[tuple[str, int], tuple[str, int]]
) -> dict[str, Any]:
    """The config dict that one server may see: its own entry whole, the addresses it may call, nothing else."""
    config = topology.config
    view: dict[str, Any] = {key: config[key] for key in _SHARED_KEYS if key in config}
    instances = {found.instance.name: found.instance for found in topology.servers}
    for ref in find_server_refs(server.instance.settings):
        if ref.name in instances and ref.name != server.name:
            view[ref.name] = _entry(instances[ref.name], {"host": ref.name, "port": CONTAINER_PORT})
    own = rewrite_endpoints(server.instance.settings, relays)
    own.pop("container", None)
    view[server.name] = _entry(server.instance, {**own, "host": "0.0.0.0", "port": CONTAINER_PORT})
    return view


def _entry(instance: ServerInstance, settings: Mapping[str, Any]) -> dict[str, Any]:
    entrypoint = instance.settings.get("entrypoint", "app.py")
    return {instance.server_type: {instance.implementation: {"entrypoint": entrypoint, **settings}}}


def bootstrap_line(
    *, session_id: str, server_name: str, config: Mapping[str, Any], session_secret: str, **more: Any
) -> bytes:
    """What a server reads from its stdin: one JSON object, ended by its only newline."""
    message = {
        "v": 1,
        "session_id": session_id,
        "server_name": server_name,
        "config": config,
        "session_secret": session_secret,
        "token": None,
        **more,
    }
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


# -- host view -------------------------------------------------------------------------------------------------


def host_view(topology: Topology, addresses: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """The config dict as the caller sees it: each server at its published address, the registry as head server."""
    view = dict(topology.config)
    for server in topology.servers:
        instance = server.instance
        host, port = addresses[server.name]
        view[instance.name] = _entry(instance, {**instance.settings, "host": host, "port": port})
    host, port = addresses[REGISTRY]
    view["head_server"] = {"host": host, "port": port}
    return view


def server_instances(
    topology: Topology, addresses: Mapping[str, tuple[str, int]], started_at: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The registry's ``/server_instances``: one entry per server, at its published address."""
    entries = []
    for server in topology.servers:
        host, port = addresses[server.name]
        entries.append(
            {
                "name": server.name,
                "process_name": server.name,
                "server_type": server.instance.server_type,
                "implementation": server.instance.implementation,
                "host": host,
                "port": port,
                "url": f"http://{host}:{port}",
                "status": "running",
                "start_time": started_at.get(server.name, ""),
            }
        )
    return entries


# -- containers ------------------------------------------------------------------------------------------------


def container_specs(
    topology: Topology,
    *,
    session_id: str,
    network: str,
    labels: Mapping[str, str],
    images: Mapping[str, str],
    registry_port: int | None,
    bind_address: str = "127.0.0.1",
) -> list[ContainerSpec]:
    """One spec per server, the registry's first. ``images`` maps server names to image references."""
    registry = ContainerSpec(
        name=container_name(session_id, REGISTRY),
        alias=REGISTRY,
        image=images[REGISTRY],
        network=network,
        labels={**labels, SERVER: REGISTRY, SERVER_TYPE: REGISTRY, ROLE: "server"},
        publish=HostBinding(bind_address, registry_port),
        limits=Limits(memory_bytes=512 * MIB, pids=128),
    )
    others = [
        replace(
            registry,
            name=container_name(session_id, server.name),
            alias=server.name,
            image=images[server.name],
            labels={**labels, SERVER: server.name, SERVER_TYPE: server.instance.server_type, ROLE: "server"},
            publish=HostBinding(bind_address),
            limits=server.limits,
            hardening=server.hardening,
        )
        for server in topology.servers
    ]
    return [registry, *others]


def images_needed(topology: Topology) -> Sequence[tuple[str, str]]:
    """Each (server type, implementation) once, in start order."""
    return list(dict.fromkeys(server.image_key for server in topology.servers))
