"""How many rollouts at a time this machine can carry: more would fail for want of connections, so they wait here."""

from __future__ import annotations

import contextlib
import ipaddress
import resource
from typing import Final
from urllib.parse import urlsplit

from nemo_gym.cli.output import note
from nemo_gym.containers.port_proxy import find_connection_limit
from nemo_gym.rollouts.connection import connection_budget
from nemo_gym.rollouts.registry_client import HostView

RESERVED_FILES: Final = 256
"""Descriptors that a process wants beside those of its calls."""

_FEW: Final = 64
"""Any engine and any process carries as many: it is not looked at limits for them."""


def concurrency_here(wanted: int, view: HostView, rollouts: int) -> int:
    """How many of ``rollouts`` to run at a time: ``wanted``, or fewer, which is told.

    Raises this process's limit of open files where it can be raised.
    """
    needed = min(wanted, rollouts)
    if needed <= _FEW:
        return wanted
    allow_files(needed + RESERVED_FILES)
    limits = {
        "this process has file descriptors for (`ulimit -n`)": connection_budget() or None,
        "the engine's proxy carries to the agent's port (six of its file descriptors each)": _proxy_limit(view),
    }
    for what, limit in limits.items():
        if limit is not None and limit < needed:
            note(f"{limit} rollouts at a time instead of {wanted}: that is how many connections {what}.")
            needed = wanted = limit
    return wanted


def _proxy_limit(view: HostView) -> int | None:
    """The fewest connections that the ports of the agents on this machine's loopback carry."""
    ports = {url.port for url in map(urlsplit, view.agent_urls.values()) if url.port and _is_loopback(url.hostname)}
    limits = [limit for limit in map(find_connection_limit, ports) if limit is not None]
    return min(limits, default=None)


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def allow_files(wanted: int) -> None:
    """Raise this process's limit of open files to ``wanted``, as far as it can be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
