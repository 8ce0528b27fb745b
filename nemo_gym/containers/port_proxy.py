"""How many connections a published port carries at a time.

Where the engine runs on this machine, its user-space proxy (``docker-proxy``, a process for each port) carries what
comes in over the loopback. Measured with engine 20.10: each connection takes six of its descriptors, two sockets and
two pairs of pipes to splice through. When they run out it does not let callers wait: it refuses them. So callers
have to stay below its limit. An engine without that proxy, or on another machine, has no such limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

PROXY: Final = "docker-proxy"
DESCRIPTORS_PER_CONNECTION: Final = 6
_RESERVED: Final = 200
_LIMIT: Final = re.compile(r"^Max open files\s+(\d+|unlimited)\b", re.MULTILINE)


def find_connection_limit(port: int, proc: Path = Path("/proc")) -> int | None:
    """How many connections at a time the proxy of ``port`` can carry; None where there is none, or no telling."""
    found = [connections_within(limits) for limits in _limits_of_proxies(port, proc)]
    known = [limit for limit in found if limit is not None]
    return min(known, default=None)


def connections_within(limits: str) -> int | None:
    """How many connections fit below the descriptors that ``/proc/<pid>/limits`` allows; None for no limit."""
    match = _LIMIT.search(limits)
    if match is None or match[1] == "unlimited":
        return None
    return max(1, (int(match[1]) - _RESERVED) // DESCRIPTORS_PER_CONNECTION)


def is_proxy_of(command: list[str], port: int) -> bool:
    """Whether a command line is that of the proxy of a TCP port."""
    if not command or Path(command[0]).name != PROXY:
        return False
    options = dict(zip(command[1::2], command[2::2], strict=False))
    return options.get("-host-port") == str(port) and options.get("-proto", "tcp") == "tcp"


def _limits_of_proxies(port: int, proc: Path) -> Iterator[str]:
    for process in psutil.process_iter(["cmdline"]):
        if not is_proxy_of(process.info["cmdline"] or [], port):
            continue
        try:
            if _is_in_our_network(process.pid, proc):
                yield (proc / str(process.pid) / "limits").read_text(encoding="ascii")
        except OSError:  # it has just ended, or may not be looked at
            continue


def _is_in_our_network(pid: int, proc: Path) -> bool:
    """Engines in other network namespaces have ports of their own. Who may not look takes it for ours."""
    try:
        return (proc / str(pid) / "ns/net").readlink() == (proc / "self/ns/net").readlink()
    except PermissionError:
        return True
