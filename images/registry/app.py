"""The session's registry: the first server to run, and the one that callers outside talk to."""

from __future__ import annotations

from nemo_gym.servers.process import run_server
from nemo_gym.servers.registry import Registry

if __name__ == "__main__":
    raise SystemExit(run_server(Registry))
