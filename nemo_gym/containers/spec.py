"""What to run, as frozen values. Nothing here talks to an engine, so a test can pin every byte sent to one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

CONTAINER_PORT = 8000
"""The TCP port every own server listens on inside its container (each has a network namespace of its own)."""

MIB = 1024 * 1024


def _no_labels() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostBinding:
    """Where a container port is published. ``port`` None: the engine assigns one."""

    address: str = "127.0.0.1"
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources one container may take. ``nano_cpus`` is in billionths of a core, None for no limit."""

    memory_bytes: int = 4096 * MIB
    pids: int = 512
    nano_cpus: int | None = None
    tmpfs_bytes: int = 256 * MIB
    shm_bytes: int = 64 * MIB
    log_bytes: int = 50 * MIB


@dataclass(frozen=True, slots=True)
class Hardening:
    """What a container may do. The defaults give up everything an ordinary server does not need."""

    read_only: bool = True
    user: str | None = None  # None: the image's own, which for ours is not root
    cap_add: tuple[str, ...] = ()
    no_new_privileges: bool = True


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container, whole. ``image`` is an image ID or reference; ``alias`` its name on each of its ``networks``.

    It is created on the first network, and connected to the others before it starts.
    """

    name: str
    alias: str
    image: str
    networks: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    port: int = CONTAINER_PORT
    publish: HostBinding | None = field(default_factory=HostBinding)
    limits: Limits = field(default_factory=Limits)
    hardening: Hardening = field(default_factory=Hardening)
    command: tuple[str, ...] | None = None  # in place of the image's own ENTRYPOINT and CMD
    is_isolated: bool = False  # asks no name server but the engine's own, which knows the session's names
    keeps_stdin: bool = False  # whether stdin stays open when the one who wrote to it lets go

    def to_create_kwargs(self) -> dict[str, Any]:
        """The arguments for the SDK's ``create_container_from_config``: the body of ``POST /containers/create``.

        Fields are those of the Engine API reference, ``ContainerCreate``. Nothing secret is among them: a
        server's configuration is written to its stdin after attach.
        """
        tcp_port = f"{self.port}/tcp"
        return {"name": self.name, "config": self._create_body(tcp_port)}

    def _create_body(self, tcp_port: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "Image": self.image,
            "Hostname": _hostname(self.alias),
            "Labels": dict(self.labels),
            "ExposedPorts": {tcp_port: {}},
            "OpenStdin": True,
            "StdinOnce": not self.keeps_stdin,
            "AttachStdin": True,
            "AttachStdout": False,
            "AttachStderr": False,
            "HostConfig": self._host_config(tcp_port),
            "NetworkingConfig": {"EndpointsConfig": {self.networks[0]: {"Aliases": [self.alias]}}},
        }
        if self.hardening.user is not None:
            body["User"] = self.hardening.user
        if self.command is not None:
            body["Entrypoint"], body["Cmd"] = list(self.command[:1]), list(self.command[1:])
        return body

    def _host_config(self, tcp_port: str) -> dict[str, Any]:
        limits, hardening = self.limits, self.hardening
        host_config: dict[str, Any] = {
            "NetworkMode": self.networks[0],
            "Init": True,
            "ReadonlyRootfs": hardening.read_only,
            "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={limits.tmpfs_bytes},mode=1777"},
            "CapDrop": ["ALL"],
            "CapAdd": list(hardening.cap_add),
            "SecurityOpt": ["no-new-privileges:true"] if hardening.no_new_privileges else [],
            "PidsLimit": limits.pids,
            "Memory": limits.memory_bytes,
            # equal to Memory: no swap, so that a server over its limit dies at once instead of crawling
            "MemorySwap": limits.memory_bytes,
            "ShmSize": limits.shm_bytes,
            "LogConfig": {
                "Type": "json-file",
                "Config": {"max-size": str(limits.log_bytes // 2), "max-file": "2"},
            },
            "RestartPolicy": {"Name": "no"},
        }
        if self.is_isolated:
            # Older engines forward what they cannot resolve even for an internal network, and where the host's own
            # name server is on its loopback they ask it from there: a way out. This one is the container's loopback.
            host_config["Dns"] = ["127.0.0.1"]
            host_config["DnsOptions"] = ["timeout:1", "attempts:1"]  # they answer such a name with silence
        if limits.nano_cpus is not None:
            host_config["NanoCpus"] = limits.nano_cpus
        if self.publish is not None:
            host_port = "" if self.publish.port is None else str(self.publish.port)
            host_config["PortBindings"] = {tcp_port: [{"HostIp": self.publish.address, "HostPort": host_port}]}
        return host_config


def container_name(session_id: str, server: str) -> str:
    """A name the engine accepts (``[a-zA-Z0-9][a-zA-Z0-9_.-]+``) that people recognise in ``docker ps``."""
    return f"nemo-gym-{session_id}-{re.sub(r'[^A-Za-z0-9_.-]', '-', server)}"


def _hostname(alias: str) -> str:
    """A host name of at most 63 letters, digits and hyphens (RFC 1123) for the container itself."""
    return re.sub(r"[^A-Za-z0-9-]", "-", alias)[:63].strip("-") or "server"
