"""Endpoints that servers call: which key of the config holds one, and those on the caller's loopback.

Pure. A URL such as ``http://127.0.0.1:8000/v1`` means the container itself when read inside one; a relay on the
session's network gives each such endpoint an address that works there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from nemo_gym.config.config_types import ServerInstance

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class LoopbackEndpoint:
    """A URL on this machine's loopback that a server's settings name, and the path of the key that holds it."""

    key: str
    url: str
    host: str
    port: int


def config_key_of(config: Mapping[str, Any], instance: ServerInstance, setting: str) -> str:
    """What the user calls a server's ``setting``: the top-level key that fills it, else the whole path to it.

    In a resolved config a setting and the key that filled it (``openai_base_url: ${judge_base_url}``) only hold the
    same value. Of several such keys the one that shares most words with the server's name is meant; one that shares
    none may hold it by chance, so it is named beside the path. What is no setting of the server stays as it is.
    """
    if setting not in instance.settings:
        return setting
    path = f"{instance.name}.{instance.server_type}.{instance.implementation}.{setting}"
    value = instance.settings[setting]
    holders = [key for key, held in config.items() if isinstance(held, str) and held and held == value]
    if not holders:
        return path
    best = max(holders, key=lambda key: (_shared_words(key, instance.name), _shared_words(key, setting)))
    return best if _shared_words(best, instance.name) else f"{path} (the same value as {best})"


def _shared_words(one: str, other: str) -> int:
    return len(set(one.lower().split("_")) & set(other.lower().split("_")))


def find_loopback_endpoints(settings: Any, key: str = "") -> Iterator[LoopbackEndpoint]:
    """Every loopback URL in ``settings``, lists and nested dicts included, in order."""
    if isinstance(settings, str):
        found = _parse(settings, key)
        if found is not None:
            yield found
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from find_loopback_endpoints(value, f"{key}.{name}" if key else str(name))
    elif isinstance(settings, list):
        for index, value in enumerate(settings):
            yield from find_loopback_endpoints(value, f"{key}[{index}]")


def rewrite_endpoints(settings: Any, addresses: Mapping[tuple[str, int], tuple[str, int]]) -> Any:
    """``settings`` with each loopback URL's host and port replaced by what ``addresses`` maps them to."""

    def rewrite(text: str) -> str:
        found = _parse(text, "")
        if found is None or (found.host, found.port) not in addresses:
            return text
        host, port = addresses[found.host, found.port]
        parts = urlsplit(text)
        user, at, _ = parts.netloc.rpartition("@")
        shown = f"[{host}]" if ":" in host else host
        return urlunsplit(parts._replace(netloc=f"{user}{at}{shown}:{port}"))

    return _map_strings(settings, rewrite)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _map_strings(held, change) for name, held in value.items()}
    if isinstance(value, list):
        return [_map_strings(held, change) for held in value]
    return value


def _parse(text: str, key: str) -> LoopbackEndpoint | None:
    if not text[:8].lower().startswith(("http://", "https://")):
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError:  # not a port, or a broken IPv6 address: the server that uses the URL will say so
        return None
    return LoopbackEndpoint(key, text, host, port) if _is_loopback(host) else None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    # 0.0.0.0 and :: are where servers say they listen; people paste them as addresses to call
    return address.is_loopback or address.is_unspecified
