"""Whether two resolved configurations, both with their secrets masked, ask for the same run. Pure.

Left out is what changes nothing that a rollout receives or is judged by: where things are (addresses, ports, folders,
files that the config was read from), how long and how many at a time is waited for, what a container may use, and how
often each task is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nemo_gym.config.instances import SETTINGS

_TOP_LEVEL: Final = SETTINGS - {"policy_model_name", "skip_verification", "skip_verification_reward"}
_TOP_LEVEL_ENDS: Final = ("_timeout_seconds", "_base_url")
_OF_SERVERS: Final = frozenset({"container", "host", "num_workers", "port", "url"})
_OF_MODELS: Final = frozenset({"connect_timeout_s", "max_concurrent_requests", "request_timeout_s", "retry"})
_MODELS: Final = "responses_api_models"
_ADDRESS: Final = "<address>"


def comparable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration decides on the results."""
    addresses = {
        value for key, value in config.items() if str(key).endswith("_base_url") and isinstance(value, str) and value
    }
    kept = {
        str(key): value
        for key, value in config.items()
        if key not in _TOP_LEVEL and not str(key).endswith(_TOP_LEVEL_ENDS)
    }
    found: dict[str, Any] = _without_places(kept, addresses, in_model=False)
    return found


def config_digest(config: Mapping[str, Any]) -> str:
    """The sha256 of ``comparable_config`` as compact JSON with sorted keys, in hex."""
    text = json.dumps(comparable_config(config), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted paths at which the two differ, sorted."""
    return list(differing_values(before, now))


def differing_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str | None, str | None]]:
    """What stands at each dotted path at which the two differ, as JSON, sorted by path; None where nothing does."""
    old = dict(_leaves(comparable_config(before)))
    new = dict(_leaves(comparable_config(now)))
    paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return {path: (old.get(path), new.get(path)) for path in paths}


def _without_places(node: Any, addresses: set[str], *, in_model: bool) -> Any:
    if isinstance(node, Mapping):
        left_out = _OF_SERVERS | _OF_MODELS if in_model else _OF_SERVERS
        if "jsonl_fpath" in node:
            left_out = left_out | {"num_repeats"}
        return {
            str(key): _without_places(value, addresses, in_model=in_model or key == _MODELS)
            for key, value in node.items()
            if key not in left_out
        }
    if isinstance(node, list | tuple):
        return [_without_places(value, addresses, in_model=in_model) for value in node]
    return _ADDRESS if isinstance(node, str) and node in addresses else node


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(node, sort_keys=True, default=str)
