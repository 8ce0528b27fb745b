"""Label keys, the identity of a session and of its owner, and whether that owner still lives.

Everything a session creates on an engine carries these labels, so that any process on any host can tell whose
it is. An owner is judged dead only on proof: the same running kernel and pid namespace, and the pid gone or
taken over by a younger process; or the same host after another boot.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

PREFIX = "nemo-gym."
SESSION = PREFIX + "session"
SERVER = PREFIX + "server"
SERVER_TYPE = PREFIX + "server-type"
ROLE = PREFIX + "role"
PUBLISHED_HOST = PREFIX + "published-host"
BENCHMARK = PREFIX + "benchmark"
DETACHED = PREFIX + "detached"
OWNER_HOST = PREFIX + "owner-host"
OWNER_BOOT = PREFIX + "owner-boot"
OWNER_PID_NAMESPACE = PREFIX + "owner-pid-namespace"
OWNER_PID = PREFIX + "owner-pid"
OWNER_START = PREFIX + "owner-start"


def new_session_id() -> str:
    """Ten hex digits: short enough for names people read, long enough never to meet another."""
    return secrets.token_hex(5)


class Liveness(Enum):
    """What can be said of an owner."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, told apart from every other one: host, boot, pid namespace, pid and start time."""

    host: str
    boot: str
    pid_namespace: str
    pid: int
    start: str

    @classmethod
    def current(cls) -> Owner:
        """The process that asks."""
        return cls.of_pid(os.getpid())

    @classmethod
    def of_pid(cls, pid: int) -> Owner:
        """Another process of this host and pid namespace."""
        return cls(
            host=_host_identity(),
            boot=_boot_identity(),
            pid_namespace=_pid_namespace(),
            pid=pid,
            start=process_start(pid) or "",
        )

    def to_labels(self) -> dict[str, str]:
        """As labels; ``from_labels`` reads them back."""
        return {
            OWNER_HOST: self.host,
            OWNER_BOOT: self.boot,
            OWNER_PID_NAMESPACE: self.pid_namespace,
            OWNER_PID: str(self.pid),
            OWNER_START: self.start,
        }

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Owner | None:
        """The owner named by labels; None when they do not name one whole."""
        try:
            return cls(
                host=labels[OWNER_HOST],
                boot=labels[OWNER_BOOT],
                pid_namespace=labels[OWNER_PID_NAMESPACE],
                pid=int(labels[OWNER_PID]),
                start=labels[OWNER_START],
            )
        except (KeyError, ValueError):
            return None


def liveness(owner: Owner) -> Liveness:
    """Whether ``owner`` lives, as far as this process can prove it."""
    if owner.boot != _boot_identity():
        # a reboot ended every process of that host; another host's processes cannot be judged from here
        return Liveness.DEAD if owner.host == _host_identity() else Liveness.UNKNOWN
    if owner.pid_namespace != _pid_namespace():
        return Liveness.UNKNOWN
    start = process_start(owner.pid)
    if start is None:
        # on a /proc mounted with hidepid a process of another user cannot be seen, and may well live
        return Liveness.UNKNOWN if _is_hidden(owner.pid) else Liveness.DEAD
    return Liveness.ALIVE if start == owner.start else Liveness.DEAD


def session_labels(
    session_id: str, owner: Owner, *, published_host: str = "", benchmark: str = "", detached: bool = False
) -> dict[str, str]:
    """The labels that everything of a session carries.

    ``published_host`` is where callers reach its ports, ``benchmark`` what it serves; a ``detached`` session's owner
    is its keeper.
    """
    return {
        SESSION: session_id,
        **owner.to_labels(),
        PUBLISHED_HOST: published_host,
        BENCHMARK: benchmark,
        DETACHED: str(detached).lower(),
    }


def selector(session_id: str) -> str:
    """The engine's label filter for one session."""
    return f"{SESSION}={session_id}"


def process_start(pid: int) -> str | None:
    """When a process started, in a form that only identifies it; None when there is none (or it is a zombie)."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # proc(5): the command name is in parentheses and may hold anything; state is field 3, starttime field 22
        fields = stat[stat.rindex(")") + 2 :].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    return _ask("ps", "-o", "lstart=", "-p", str(pid)) or None  # ps is POSIX; other systems have no /proc


def _ask(*command: str) -> str:
    """What a program prints: the same whoever asks, and not in the language and time zone of the environment."""
    environ = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ).stdout.strip()


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that this one is not shown."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except (ProcessLookupError, OverflowError):
        pass
    return False


def _host_identity() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            machine = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if machine:
            # machine-id(5) asks not to show it as it is
            digest = hashlib.sha256(b"nemo-gym" + machine.encode()).hexdigest()[:12]
            return f"{socket.gethostname()}/{digest}"
    return socket.gethostname()


def _boot_identity() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        told = _ask("sysctl", "-n", "kern.boottime")  # { sec = 1700000000, usec = 0 } Tue Nov 14 22:13:20 2023
        seconds = re.search(r"\bsec = (\d+)", told)
        return seconds[1] if seconds is not None else hashlib.sha256(told.encode()).hexdigest()[:16]


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
