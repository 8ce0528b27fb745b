"""What a process inside a container reaches, tried from there with nothing but its Python."""

from __future__ import annotations

import json
from collections.abc import Iterable

import docker

Target = tuple[str, int]

_PROGRAM = """
import concurrent.futures, json, socket, sys

asked = json.loads(sys.argv[1])


def connects(target):
    host, port = target
    try:
        socket.create_connection((host, port), timeout=asked["timeout_s"]).close()
    except OSError:
        return False
    return True


def resolves(name):
    try:
        return bool(socket.getaddrinfo(name, 80))
    except OSError:
        return False


for host, port in asked["datagrams"]:
    try:
        socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM).sendto(
            b"from inside", socket.getaddrinfo(host, port)[0][4]
        )
    except OSError:
        pass
with concurrent.futures.ThreadPoolExecutor(200) as pool:
    print(json.dumps([list(pool.map(connects, asked["targets"])), list(pool.map(resolves, asked["names"]))]))
"""


def reached_from(
    engine: docker.APIClient,
    container_id: str,
    targets: Iterable[Target],
    names: Iterable[str] = (),
    datagrams: Iterable[Target] = (),
    timeout_s: float = 1.0,
) -> set[Target | str]:
    """Which TCP ``targets`` take a connection from a container, and which ``names`` it can resolve.

    ``datagrams`` are sent one UDP packet each; only who listens there can tell whether it came.
    """
    asked_targets, asked_names = list(dict.fromkeys(targets)), list(names)
    asked = {"targets": asked_targets, "names": asked_names, "datagrams": list(datagrams), "timeout_s": timeout_s}
    command = ["python", "-c", _PROGRAM, json.dumps(asked)]
    output = engine.exec_start(engine.exec_create(container_id, command)["Id"])
    connected, resolved = json.loads(output)
    found: set[Target | str] = {target for target, did in zip(asked_targets, connected, strict=True) if did}
    return found | {name for name, did in zip(asked_names, resolved, strict=True) if did}
