"""Whether the container engine answers: its name and exit code 0, or what to type and exit code 1."""

from __future__ import annotations

import os
import sys

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.errors import EngineUnavailableError


def main() -> int:
    try:
        engine = DockerEngine.connect(os.environ)
    except EngineUnavailableError as error:
        print(error)
        return 1
    print(f"Container engine: {engine.endpoint.url} ({engine.endpoint.source})")
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
