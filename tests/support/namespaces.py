"""Another machine, as far as the network goes: a network namespace behind a veth pair. Linux, as root."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class OtherMachine:
    """``near`` is this machine's address on the wire between the two, ``far`` the other one's."""

    namespace: str
    near: str
    far: str

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program over there. Only its network differs: mounts stay as they are, control groups included."""
        return subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.namespace}", *command], text=True, cwd=REPOSITORY, **options
        )

    def python(self, program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a Python program over there, its output in a pipe."""
        command = [sys.executable, "-u", "-c", program, *arguments]
        return self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def other_machine() -> Iterator[OtherMachine]:
    """A namespace with a wire to it, and nothing of either afterwards."""
    name = f"ngt{secrets.token_hex(4)}"
    # 198.18.0.0/15 is set aside for tests between networks (RFC 2544)
    net = f"198.18.{secrets.randbelow(256)}.{4 * secrets.randbelow(64)}"
    head, last = net.rsplit(".", 1)
    machine = OtherMachine(name, near=f"{head}.{int(last) + 1}", far=f"{head}.{int(last) + 2}")
    near_end, far_end = f"{name}n", f"{name}f"
    with contextlib.ExitStack() as cleanup:
        _ip("netns", "add", name)
        cleanup.callback(_ip, "netns", "del", name)
        _ip("link", "add", near_end, "type", "veth", "peer", "name", far_end, "netns", name)
        cleanup.callback(_ip, "link", "del", near_end)
        _ip("addr", "add", f"{machine.near}/30", "dev", near_end)
        _ip("link", "set", near_end, "up")
        _ip("-n", name, "addr", "add", f"{machine.far}/30", "dev", far_end)
        _ip("-n", name, "link", "set", far_end, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", machine.near)
        yield machine
