"""One session as the engine sees it, found without this package's own code: through the registry's identity."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import docker

SESSION = "nemo-gym.session"
SERVER = "nemo-gym.server"
OWNER_PID = "nemo-gym.owner-pid"


def get(port: int, path: str) -> Any:
    """The JSON that a server on this machine's loopback answers with."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def session_of(registry_port: int) -> str:
    """The session that a registry belongs to."""
    return str(get(registry_port, "/")["session_id"])


def containers_of(engine: docker.APIClient, session_id: str) -> dict[str, dict[str, Any]]:
    """What inspect says of each of a session's containers, running or not, by server name."""
    listed = engine.containers(all=True, filters={"label": f"{SESSION}={session_id}"})
    inspected = [engine.inspect_container(container["Id"]) for container in listed]
    return {container["Config"]["Labels"][SERVER]: container for container in inspected}
