"""What each side gets to see of a resolved config. Pure.

Every address has two views: inside the session's network a server is ``http://<server name>:8000`` (the container view,
which servers get); from the caller it is a published port (the host view, which the registry serves).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nemo_gym.config.config_types import RESERVED_KEYS, ServerInstance, find_server_refs
from nemo_gym.config.redaction import redact_config
from nemo_gym.containers.spec import CONTAINER_PORT
from nemo_gym.deployment.endpoints import rewrite_endpoints
from nemo_gym.deployment.running import server_url
from nemo_gym.deployment.topology import REGISTRY, ServedServer, Topology

Address = tuple[str, int]

HEAD_SERVER = {"host": REGISTRY, "port": CONTAINER_PORT}
"""The registry's address inside the session's network."""

# what a server may see of the config's own top level
_SHARED_KEYS = (
    "observability_enabled",
    "skip_verification",
    "skip_verification_reward",
    "model_endpoint_readiness_timeout_seconds",
)

# top-level settings that mean nothing in a container: paths, ports, addresses and keys of the caller's
_OF_THE_CALLER = RESERVED_KEYS - {"policy_model_name", "dry_run", "verbose", *_SHARED_KEYS} | {
    "bind_address",
    "published_host",
    "image_lock",
}


def container_view(topology: Topology, server: ServedServer, relays: Mapping[Address, Address]) -> dict[str, Any]:
    """The config dict that one server may see: its own entry whole, the addresses it may call, nothing else."""
    config = topology.config
    view: dict[str, Any] = {key: config[key] for key in _SHARED_KEYS if key in config}
    instances = {found.instance.name: found.instance for found in topology.servers}
    for ref in find_server_refs(server.instance.settings):
        if ref.name in instances and ref.name != server.name:
            view[ref.name] = _entry(instances[ref.name], {"host": ref.name, "port": CONTAINER_PORT})
    own = rewrite_endpoints(server.instance.settings, relays)
    for key in ("container", "image"):  # what the engine is told, and no business of the server's
        own.pop(key, None)
    if not server.is_foreign:
        own.pop("files", None)  # paths of the caller's machine: what they hold comes beside the config
    view[server.name] = _entry(server.instance, {**own, "host": "0.0.0.0", "port": CONTAINER_PORT})
    return view


def foreign_view(topology: Topology, server: ServedServer, relays: Mapping[Address, Address]) -> dict[str, Any]:
    """The config dict for a server written elsewhere: what ``container_view`` holds, and what such servers look for.

    That is the head server's address, ``dry_run``, and every single setting of the config's top level that is neither
    secret nor one of the caller's machine.
    """
    shown = redact_config(topology.config)
    plain = {
        key: value
        for key, value in topology.config.items()
        if key not in _OF_THE_CALLER and isinstance(value, str | int | float | bool) and shown[key] == value
    }
    return {"dry_run": False, **plain, **container_view(topology, server, relays), "head_server": HEAD_SERVER}


def inside_view(topology: Topology) -> dict[str, Any]:
    """The config dict as the session's network sees it, without secrets: for servers that ask the registry."""
    view = redact_config(topology.config)
    for server in topology.servers:
        instance = server.instance
        settings = view[instance.name][instance.server_type][instance.implementation]
        view[instance.name] = _entry(instance, {**settings, "host": server.name, "port": CONTAINER_PORT})
    view["head_server"] = HEAD_SERVER
    return view


def _entry(instance: ServerInstance, settings: Mapping[str, Any]) -> dict[str, Any]:
    entrypoint = instance.settings.get("entrypoint", "app.py")
    return {instance.server_type: {instance.implementation: {"entrypoint": entrypoint, **settings}}}


def bootstrap_line(
    *,
    session_id: str,
    server_name: str,
    config: Mapping[str, Any],
    session_secret: str,
    token: str | None = None,
    **more: Any,
) -> bytes:
    """What a server reads from its stdin: one JSON object, ended by its only newline."""
    message = {
        "v": 1,
        "session_id": session_id,
        "server_name": server_name,
        "config": config,
        "session_secret": session_secret,
        "token": token,
        **more,
    }
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


def inside_urls(topology: Topology) -> dict[str, str]:
    """Where the registry reaches each server that nobody else can be asked about: those on the internal network."""
    return {name: f"http://{name}:{CONTAINER_PORT}" for name in topology.internal_names}


def host_view(topology: Topology, addresses: Mapping[str, Address]) -> dict[str, Any]:
    """The config dict as the caller sees it: each server at its published address, the registry as head server.

    A server on the internal network has none: its host and port are null, and its ``network`` says why.
    """
    view = dict(topology.config)
    for server in topology.servers:
        instance = server.instance
        view[instance.name] = _entry(instance, {**instance.settings, **_address_entry(server, addresses)})
    host, port = addresses[REGISTRY]
    view["head_server"] = {"host": host, "port": port}
    return view


def server_instances(
    topology: Topology, addresses: Mapping[str, Address], started_at: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The registry's ``/server_instances``: one entry per server, at its published address."""
    entries = []
    for server in topology.servers:
        where = _address_entry(server, addresses)
        entries.append(
            {
                "name": server.name,
                "process_name": server.name,
                "server_type": server.instance.server_type,
                "implementation": server.instance.implementation,
                **where,
                "url": None if server.is_internal else server_url(where["host"], where["port"]),
                "status": "running",
                "start_time": started_at.get(server.name, ""),
            }
        )
    return entries


def _address_entry(server: ServedServer, addresses: Mapping[str, Address]) -> dict[str, Any]:
    if server.is_internal:
        return {"host": None, "port": None, "network": "internal"}
    host, port = addresses[server.name]
    return {"host": host, "port": port}
