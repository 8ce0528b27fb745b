"""What there is before and after a test, and what has been left: the check every integration test ends with.

The engine's lists are taken whole, without a label filter, so that a piece that carries no label is found too.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import docker


@dataclass(frozen=True)
class Snapshot:
    """Complete lists, at one moment."""

    containers: frozenset[str]
    networks: frozenset[str]
    volumes: frozenset[str]
    processes: frozenset[str]
    files: frozenset[str]

    def left_since(self, before: Snapshot) -> list[str]:
        """Each piece that is here now and was not before, with its kind."""
        return [
            f"{kind.name.removesuffix('s').replace('processe', 'process')} {name}"
            for kind in fields(self)
            for name in sorted(getattr(self, kind.name) - getattr(before, kind.name))
        ]


def take_snapshot(engine: docker.APIClient, folder: Path) -> Snapshot:
    """The engine's lists, and the processes and files of a test whose temporary folder is ``folder``."""
    return Snapshot(
        containers=frozenset(f"{c['Id'][:12]} {c['Names'][0]}" for c in engine.containers(all=True)),
        networks=frozenset(f"{n['Id'][:12]} {n['Name']}" for n in engine.networks()),
        volumes=frozenset(volume["Name"] for volume in engine.volumes()["Volumes"] or []),
        processes=frozenset(processes_started_under(folder)),
        files=frozenset(str(path) for path in folder.rglob("*")),
    )


def processes_started_under(folder: Path) -> list[str]:
    """Every process that inherited ``folder`` as its temporary one: pid and command line.

    Whatever a test starts, and whatever that starts, carries the test's own folder in its environment; other people's
    processes on the machine do not.
    """
    marker = f"TMPDIR={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # ended meanwhile
            continue
        if line and int(entry.name) != os.getpid():  # a zombie has no command line
            found.append(f"{entry.name} {line[:200]}")
    return found


def wait_for_nothing_left(engine: docker.APIClient, before: Snapshot, folder: Path, deadline_s: float) -> list[str]:
    """What is left once the deadline has passed; empty as soon as nothing is."""
    end = time.monotonic() + deadline_s
    while left := take_snapshot(engine, folder).left_since(before):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left
