"""From the SIGKILL of a serving process to an engine without a trace of its session, and to the keeper's own end.

    python -m tests.benchmarks.kill_to_empty [--rounds 20]

The floor is what the same containers and network take to be removed in parallel with the bare Docker SDK, in the same
run: the ratio is what the keeper adds (noticing, starting up, listing, and looking again until all is gone).
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker

from tests.benchmarks.serve_to_yield import percentiles
from tests.support.serving_process import ServingProcess, keepers_of
from tests.support.sessions import SESSION, session_of
from tests.support.stub_servers import acting, make_stubs


def pieces(client: docker.APIClient, session: str) -> tuple[list[str], list[str]]:
    """IDs of a session's containers and networks."""
    filters = {"label": f"{SESSION}={session}"}
    return (
        [container["Id"] for container in client.containers(all=True, filters=filters)],
        [network["Id"] for network in client.networks(filters=filters)],
    )


def killed(client: docker.APIClient, folder: str) -> tuple[float, float]:
    """Seconds from SIGKILL until the engine is empty, and until the keeper has ended."""
    with ServingProcess(acting(results_dir=folder)) as process:
        session = session_of(int(process.wait_for("serving on").split()[-1]))
        keepers = keepers_of(process.pid)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        while any(pieces(client, session)):
            time.sleep(0.005)
        empty_s = time.monotonic() - began
        while any(Path(f"/proc/{keeper}").exists() for keeper in keepers):
            time.sleep(0.01)
        return empty_s, time.monotonic() - began


def removed(client: docker.APIClient, folder: str) -> float:
    """Seconds that the bare SDK needs to remove such a session in parallel, owner and keeper killed before."""
    with ServingProcess(acting(results_dir=folder)) as process:
        session = session_of(int(process.wait_for("serving on").split()[-1]))
        for pid in [*keepers_of(process.pid), process.pid]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
    containers, networks = pieces(client, session)
    began = time.monotonic()
    with ThreadPoolExecutor(len(containers)) as pool:
        list(pool.map(lambda container: client.remove_container(container, v=True, force=True), containers))
    for network in networks:
        client.remove_network(network)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    client = docker.from_env(timeout=60).api
    with tempfile.TemporaryDirectory() as folder:
        make_stubs(Path(folder))
        os.environ["NEMO_GYM_EXTRA_ROOTS"] = folder
        removed(client, folder)  # images built, caches warm
        rounds = [(killed(client, folder), removed(client, folder)) for _ in range(arguments.rounds)]
    client.close()
    empty = [empty_s for (empty_s, _), _ in rounds]
    ended = [ended_s for (_, ended_s), _ in rounds]
    bare = [bare_s for _, bare_s in rounds]
    ratios = [mine / floor for mine, floor in zip(empty, bare, strict=True)]
    print(f"SIGKILL to nothing left: {percentiles(empty)} s; the keeper ends after {percentiles(ended)} s")
    print(f"bare SDK, removal alone: {percentiles(bare)} s; ratio {percentiles(ratios)}")


if __name__ == "__main__":
    main()
