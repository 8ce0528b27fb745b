"""A resolved config as the containers to run: pure, so that a test can pin the whole of it without an engine.

Which servers there are, what each container may take and do, and which networks it stands on. ``views`` holds what
each side gets to see of the config.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_gym.config.config_types import ServerInstance, find_server_refs, parse_server_instances
from nemo_gym.containers.labels import ROLE, SERVER, SERVER_TYPE
from nemo_gym.containers.preflight import WantedImage
from nemo_gym.containers.spec import (
    MIB,
    ContainerSpec,
    Hardening,
    HostBinding,
    Limits,
    container_name,
)
from nemo_gym.deployment.endpoints import LoopbackEndpoint, find_loopback_endpoints
from nemo_gym.deployment.image_settings import find_wanted_image
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

REGISTRY = "registry"
"""The registry's name on the session's network, which no other server may have."""

# models first, so that what takes longest to be ready starts first
_START_ORDER = ("responses_api_models", "resources_servers", "responses_api_agents", "environment_servers")

_SIZE = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}
_LEAST_MEMORY = 6 * MIB
"""Engines refuse less."""


class ContainerSettings(BaseModel):
    """The optional ``container:`` block of a server's config. Sizes are bytes, or text such as ``512m``.

    ``config_from`` says how the server takes its configuration: ``environment`` for one written elsewhere, which
    expects it in environment variables. ``command`` takes the place of what its image runs.
    """

    model_config = ConfigDict(extra="forbid")

    memory: int | str = Field(default="4g")
    pids_limit: int = Field(default=512, gt=0)
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tmpfs: int | str = Field(default="256m")
    shm: int | str = Field(default="64m")
    read_only: bool = True
    user: int | str | None = None
    cap_add: list[str] = Field(default_factory=list)
    no_new_privileges: bool = True
    network: Literal["session", "internal"] = "session"
    config_from: Literal["stdin", "environment"] = "stdin"
    command: list[str] | None = Field(default=None, min_length=1)


@dataclass(frozen=True, slots=True)
class ServedServer:
    """One server to run: its config entry, and what its container may take and do."""

    instance: ServerInstance
    limits: Limits
    hardening: Hardening
    endpoints: tuple[LoopbackEndpoint, ...]
    image: WantedImage | None = None  # from a registry; without it, built from the image folder
    is_internal: bool = False  # reaches nothing but the servers that it calls or that call it, and publishes no port
    is_foreign: bool = False  # written elsewhere: takes its configuration from the environment, has no identity route
    command: tuple[str, ...] | None = None  # in place of what its image runs

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

    @property
    def benchmark_name(self) -> str:
        """What the served agents' benchmark data sets are called, for people; empty when there is none."""
        datasets = [entry for server in self.servers for entry in server.instance.settings.get("datasets") or []]
        return ",".join(str(entry.get("name")) for entry in datasets if entry.get("type") == "benchmark")

    @property
    def internal_names(self) -> list[str]:
        """The servers that stand on the internal network alone."""
        return [server.name for server in self.servers if server.is_internal]

    def on_internal_network(self) -> set[str]:
        """Every server that stands on the internal network: the internal ones, and those they call or are called by."""
        internal = set(self.internal_names)
        found = set(internal)
        for server in self.servers:
            called = {ref.name for ref in find_server_refs(server.instance.settings)}
            if called & internal:
                found.add(server.name)
            if server.is_internal:
                found |= called
        return found

    def loopback_targets(self) -> list[tuple[str, int]]:
        """Each (host, port) on the caller's loopback that some server calls, once."""
        found = {(e.host, e.port): None for server in self.servers for e in server.endpoints}
        return list(found)


def build_topology(
    config: Mapping[str, Any], is_left_out: Callable[[ServerInstance], bool] = lambda instance: False
) -> Topology:
    """The servers of a resolved config in the order they are started, but those that ``is_left_out`` names.

    Raises ``ConfigError`` when there is none, a name cannot be used, or a ``container:`` block is wrong.
    """
    declared = parse_server_instances(config)
    instances = [found for found in declared if not is_left_out(found)]
    for found in declared:
        if found not in instances:
            logger.warning(
                "server %s is left out: there is no image folder images/%s/%s for it, and its config names no image",
                found.name,
                found.server_type,
                found.implementation,
            )
    if not instances:
        raise ConfigError(
            "The config declares no server. It needs a model, an agent and a resources server; a benchmark's "
            "config_paths usually bring them."
        )
    for instance in instances:
        check_server_name(instance.name)
    instances.sort(key=lambda instance: _START_ORDER.index(instance.server_type))
    servers = tuple(_served(instance) for instance in instances)
    for server in servers:
        _check_internal(server)
        _check_datasets(server.instance)
    return Topology(config=config, servers=servers)


def _check_internal(server: ServedServer) -> None:
    if not server.is_internal:
        return
    if server.instance.server_type == "responses_api_agents":
        raise ConfigError(
            f"The agent {server.name!r} cannot stand on the internal network: callers send it their tasks over a "
            "published port. Set container.network: internal for the servers behind it instead."
        )
    if server.endpoints:
        raise ConfigError(
            f"The server {server.name!r} stands on the internal network, from which {server.endpoints[0].url} "
            f"({server.endpoints[0].key}) cannot be reached. Take away container.network, or the endpoint."
        )


def _check_datasets(instance: ServerInstance) -> None:
    entries = instance.settings.get("datasets") or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(
            f"{instance.name}.datasets must be a list of data sets, each with a dash before its first key "
            f"(`- name: ...`), and is {entries!r:.80}."
        )


def check_server_name(name: str) -> None:
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
    endpoints = tuple(find_loopback_endpoints(instance.settings))
    return ServedServer(
        instance,
        limits,
        hardening,
        endpoints,
        image=find_wanted_image(instance),
        is_internal=settings.network == "internal",
        is_foreign=settings.config_from == "environment",
        command=None if settings.command is None else tuple(settings.command),
    )


def _size(value: int | str, server: str, key: str, least: int = 1) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match is not None else 0
    if size < least:  # to an engine, 0 means no limit at all
        raise ConfigError(
            f"container.{key} of server {server!r} is {value!r}; write a number of bytes of at least {least}, or one "
            "with k, m or g: 512m."
        )
    return size


def container_specs(
    topology: Topology,
    *,
    session_id: str,
    network: str,
    internal_network: str = "",
    labels: Mapping[str, str],
    images: Mapping[str, str],
    registry_port: int | None,
    bind_address: str = "127.0.0.1",
) -> list[ContainerSpec]:
    """One spec per server, the registry's first. ``images`` maps server names to image references.

    ``internal_network`` is needed when some server stands on it; the registry then does too, since it is through
    the registry that such a server is probed.
    """
    registry = ContainerSpec(
        name=container_name(session_id, REGISTRY),
        alias=REGISTRY,
        image=images[REGISTRY],
        networks=(network, internal_network) if topology.internal_names else (network,),
        labels={**labels, SERVER: REGISTRY, SERVER_TYPE: REGISTRY, ROLE: "server"},
        publish=HostBinding(bind_address, registry_port),
        limits=Limits(memory_bytes=512 * MIB, pids=128),
        keeps_stdin=True,
    )
    on_internal = topology.on_internal_network()
    others = []
    for server in topology.servers:
        networks = [] if server.is_internal else [network]
        networks += [internal_network] if server.name in on_internal else []
        others.append(
            replace(
                registry,
                name=container_name(session_id, server.name),
                alias=server.name,
                image=images[server.name],
                networks=tuple(networks),
                labels={**labels, SERVER: server.name, SERVER_TYPE: server.instance.server_type, ROLE: "server"},
                publish=None if server.is_internal else HostBinding(bind_address),
                limits=server.limits,
                hardening=server.hardening,
                command=server.command,
                is_isolated=server.is_internal,
                keeps_stdin=False,
            )
        )
    return [registry, *others]


def images_needed(topology: Topology) -> Sequence[tuple[str, str]]:
    """Each (server type, implementation) that is built from its folder, once, in start order."""
    return list(dict.fromkeys(server.image_key for server in topology.servers if server.image is None))
