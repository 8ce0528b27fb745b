"""Server entries of a config, parsed once into types: ``name -> server type -> implementation -> settings``.

Pure, and free of pydantic, so that listing and resolving start fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SERVER_TYPES = ("responses_api_models", "responses_api_agents", "resources_servers", "environment_servers")

DOMAINS = (
    "math",
    "coding",
    "agent",
    "knowledge",
    "instruction_following",
    "long_context",
    "safety",
    "games",
    "translation",
    "e2e",
    "rlhf",
    "other",
)

POLICY_MODEL = "policy_model"
POLICY_KEYS = ("policy_base_url", "policy_api_key", "policy_model_name")

# Top-level keys with a meaning of their own; what stands under them is never taken for a server.
RESERVED_KEYS = frozenset(POLICY_KEYS) | {
    "cache_dir",
    "component_name",
    "config_paths",
    "default_host",
    "disallowed_ports",
    "dry_run",
    "entrypoint",
    "head_server",
    "head_server_deps",
    "hf_token",
    "json",
    "model_call_capture_dir",
    "model_endpoint_readiness_timeout_seconds",
    "nemo_gym_log_dir",
    "observability_enabled",
    "port_range_high",
    "port_range_low",
    "python_version",
    "query",
    "ray_head_node_address",
    "results_dir",
    "skip_venv_if_present",
    "skip_verification",
    "skip_verification_reward",
    "use_absolute_ip",
    "uv_cache_dir",
    "uv_venv_dir",
    "verbose",
}

# Every top-level key that planning and serving read, those of servers and models aside.
SETTINGS = RESERVED_KEYS | {
    "bind_address",
    "image_build_timeout_seconds",
    "image_lock",
    "image_pull_stall_timeout_seconds",
    "num_prepare_benchmark_processes",
    "prepare_timeout_s",
    "published_host",
    "server_ready_timeout_seconds",
    "server_start_timeout_seconds",
    "server_stop_grace_seconds",
    "use_cached_prepared_benchmarks",
}


@dataclass(frozen=True)
class ServerRef:
    """A reference to another server: ``{type: <server type>, name: <server name>}`` in a config or a row."""

    type: str
    name: str


@dataclass(frozen=True)
class ServerInstance:
    """One server of a config. ``settings`` is everything under its implementation key."""

    name: str
    server_type: str
    implementation: str
    settings: dict[str, Any] = field(hash=False)


def iter_server_refs(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ServerRef]]:
    """Every server reference under ``node`` with the path to it, in order of appearance.

    A reference is a dict whose ``type`` is a server type and whose ``name`` is a string; further keys are
    allowed, as configs of newer trees add some.
    """
    if isinstance(node, Mapping):
        kind, name = node.get("type"), node.get("name")
        if isinstance(kind, str) and isinstance(name, str) and kind in SERVER_TYPES:
            yield path, ServerRef(kind, name)
            return
        for key, value in node.items():
            yield from iter_server_refs(value, (*path, str(key)))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from iter_server_refs(value, (*path, str(index)))


def find_server_refs(settings: Any) -> list[ServerRef]:
    """The servers that ``settings`` refers to, anywhere inside, each once, in order of appearance."""
    return list(dict.fromkeys(ref for _, ref in iter_server_refs(settings)))
