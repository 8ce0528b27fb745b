"""Which top-level entries of a config are servers, and what is wrong with those that almost are. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from nemo_gym.config.instances import DOMAINS, POLICY_MODEL, RESERVED_KEYS, SERVER_TYPES, ServerInstance
from nemo_gym.config.paths import kind_of
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

# A server's name is its network alias and the first step of an override, so neither dots nor blanks can be in it.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_MISSING = "???"


def server_type_of(entry: Any) -> str | None:
    """The one server type ``entry`` stands under, or None when it is no (clean) server entry."""
    if not isinstance(entry, Mapping):
        return None
    types = [key for key in entry if key in SERVER_TYPES]
    return types[0] if len(types) == 1 else None


def looks_like_server(name: str, entry: Any) -> bool:
    """Whether the top-level ``entry`` was meant as a server, well-formed or not."""
    if name in RESERVED_KEYS or not isinstance(entry, Mapping):
        return False
    return any(key in SERVER_TYPES for key in entry) or _foreign_type(entry) is not None


def _foreign_type(entry: Mapping[str, Any]) -> str | None:
    """The key of ``entry`` that stands where a server type belongs but is none, if there is one."""
    for key, value in entry.items():
        if key in SERVER_TYPES or not isinstance(value, Mapping):
            continue
        holds_server = any(isinstance(item, Mapping) and "entrypoint" in item for item in value.values())
        if holds_server or get_close_matches(key, SERVER_TYPES, n=1, cutoff=0.85):
            return key
    return None


def parse_server_instances(config: Mapping[str, Any]) -> list[ServerInstance]:
    """The servers of a resolved config in the order they are declared.

    Top-level entries that are no servers are passed over; one that was meant as a server and is none, or
    stands under an unknown server type, is a ``ConfigError``.
    """
    if not isinstance(config, dict):
        # A DictConfig: its values may be interpolations, and raise where they are still to be set.
        from nemo_gym.config.plain import to_plain

        config = to_plain(cast("DictConfig", config))
    problems = [problem for _, problem in iter_entry_problems(config, sketched=(POLICY_MODEL,))]
    if problems:
        raise ConfigError("\n".join(problems))
    instances = []
    for name, entry in config.items():
        server_type = None if name in RESERVED_KEYS else server_type_of(entry)
        if server_type is None:
            continue
        for implementation, settings in entry[server_type].items():
            instances.append(ServerInstance(name, server_type, implementation, dict(settings)))
    return instances


def iter_entry_problems(config: Mapping[str, Any], sketched: Container[str]) -> Iterator[tuple[str, str]]:
    """The name of each entry that was meant as a server and is none yet, with what is wrong, in a sentence.

    Those named in ``sketched`` may lack settings (overrides of a ``policy_model`` whose file is not loaded).
    """
    for name, entry in config.items():
        if looks_like_server(name, entry):
            for problem in _entry_problems(name, entry, complete=name not in sketched):
                yield name, problem


def _entry_problems(name: str, entry: Mapping[str, Any], *, complete: bool) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield (
            f"Server name {name!r}: a server's name becomes its network name, so it takes letters, digits, "
            f"'_' and '-' only, up to 63 of them."
        )
    types = [key for key in entry if key in SERVER_TYPES]
    foreign = _foreign_type(entry)
    if foreign is not None:
        near = get_close_matches(foreign, SERVER_TYPES, n=1, cutoff=0.75)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        yield (
            f"Server {name!r} stands under the unknown server type {foreign!r}.{meant} "
            f"Server types are {', '.join(SERVER_TYPES)}."
        )
        return
    if len(types) > 1:
        yield f"Server {name!r} stands under {' and '.join(types)}; a server has exactly one server type."
        return
    beside = [key for key in entry if key not in SERVER_TYPES]
    if beside:
        yield (
            f"Server {name!r} has {_quoted(beside)} beside {types[0]!r}; settings belong one level deeper, under "
            f"{name}.{types[0]}.<implementation>. Check the indentation."
        )
    yield from _implementation_problems(name, types[0], entry[types[0]], complete=complete)


def _implementation_problems(name: str, server_type: str, node: Any, *, complete: bool) -> Iterator[str]:
    path = f"{name}.{server_type}"
    if not isinstance(node, Mapping) or not node:
        found = "nothing" if not node else kind_of(node)
        yield f"Server {name!r}: {path} needs one implementation with its settings; found {found}."
        return
    if len(node) > 1:
        yield (
            f"Server {name!r}: {path} holds {len(node)} implementations, {_quoted(node)}; exactly one is needed. "
            f"Drop the others, e.g. with `_delete_key: {next(iter(node))}` under {path}."
        )
        return
    implementation, settings = next(iter(node.items()))
    path = f"{path}.{implementation}"
    if not isinstance(settings, Mapping):
        yield f"Server {name!r}: {path} needs its settings (at least `entrypoint: app.py`); found {kind_of(settings)}."
        return
    if complete:
        yield from _settings_problems(name, server_type, path, settings)


def _settings_problems(name: str, server_type: str, path: str, settings: Mapping[str, Any]) -> Iterator[str]:
    entrypoint = settings.get("entrypoint")
    if not isinstance(entrypoint, str) or not entrypoint:
        found = "it is missing" if "entrypoint" not in settings else f"found {kind_of(entrypoint)}"
        yield f"Server {name!r}: {path}.entrypoint must name the file to run, such as app.py; {found}."
    port = settings.get("port")
    if port not in (None, _MISSING) and (isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536):
        yield f"Server {name!r}: {path}.port must be a number from 1 to 65535; found {port!r}."
    host = settings.get("host")
    if host is not None and not isinstance(host, str):
        yield f"Server {name!r}: {path}.host must be a host name or address; found {host!r}."
    if server_type == "resources_servers":
        yield from _domain_problems(name, path, settings)


def _domain_problems(name: str, path: str, settings: Mapping[str, Any]) -> Iterator[str]:
    domain = settings.get("domain")
    if domain == _MISSING or domain in DOMAINS:
        return
    if domain is None:
        found = "it is missing."
    else:
        near = get_close_matches(str(domain), DOMAINS, n=1)
        found = f"found {domain!r}." + (f" Did you mean {near[0]!r}?" if near else "")
    yield f"Server {name!r}: {path}.domain must be one of {', '.join(DOMAINS)}; {found}"


def _quoted(keys: Any) -> str:
    return ", ".join(repr(key) for key in keys)
