"""Whether a container engine answers, for scripts/engine.

Prints its name and exits with 0; or prints what to type and exits with 1, or with 2 where ``DOCKER_HOST`` or a
context names an engine other than the address given.
"""

from __future__ import annotations

import os
import sys

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine_endpoint import find_endpoint
from nemo_gym.errors import EngineUnavailableError


def main(own_address: str) -> int:
    is_named = True
    try:
        endpoint = find_endpoint(os.environ)
        is_named = endpoint.source != "default" and endpoint.url != own_address
        DockerEngine.connect(os.environ).close()
    except EngineUnavailableError as error:
        print(error)
        return 2 if is_named else 1
    print(f"Container engine: {endpoint.url} ({endpoint.source})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
