"""What there is before and after a test, and what has been left: the check every integration test ends with.

The engine's lists are taken whole, without a label filter, so that a piece that carries no label is found too.
"""

from __future__ import annotations

import os
import sys
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


def take_snapshot(engine: docker.APIClient, folders: list[Path]) -> Snapshot:
    """The engine's lists, our processes, and the files in the folders that hold temporary ones."""
    return Snapshot(
        containers=frozenset(f"{c['Id'][:12]} {c['Names'][0]}" for c in engine.containers(all=True)),
        networks=frozenset(f"{n['Id'][:12]} {n['Name']}" for n in engine.networks()),
        volumes=frozenset(volume["Name"] for volume in engine.volumes()["Volumes"] or []),
        processes=frozenset(our_processes()),
        files=frozenset(str(path) for folder in folders for path in folder.rglob("*")),
    )


def our_processes() -> list[str]:
    """Every process that runs this package or this Python, but for this one: pid and command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile
            continue
        line = b" ".join(words).decode(errors="replace").strip()
        if int(entry.name) != os.getpid() and ("nemo_gym" in line or line.startswith(sys.executable)):
            found.append(f"{entry.name} {line[:200]}")
    return found


def wait_for_nothing_left(
    engine: docker.APIClient, before: Snapshot, folders: list[Path], deadline_s: float
) -> list[str]:
    """What is left once the deadline has passed; empty as soon as nothing is."""
    end = time.monotonic() + deadline_s
    while left := take_snapshot(engine, folders).left_since(before):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left
