"""How long serving takes, against the same containers started in parallel with the bare Docker SDK.

    python -m tests.benchmarks.serve_to_yield [--rounds 20]

Both do the same work in turn, in one process and one run: the floor uses the same images, flags, probes and number
of containers, and nothing else of this package. The figures to quote are the ratios: seconds differ from machine
to machine and from minute to minute.
"""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import docker

from nemo_gym.config.resolve import load_config, to_plain
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.deployment.server_images import ensure_server_images
from nemo_gym.deployment.topology import REGISTRY, build_topology, container_specs
from nemo_gym.deployment.views import bootstrap_line, container_view
from nemo_gym.environment import serve_benchmark
from nemo_gym.environment.serving import serving_config_paths
from tests.support.scripted_endpoint import ScriptedEndpoint

BENCHMARK = "truthfulqa_mc1"


@dataclass(frozen=True)
class Round:
    """Seconds of one start and one teardown."""

    start_s: float
    teardown_s: float


def ours(overrides: dict[str, str]) -> Round:
    began = time.monotonic()
    with serve_benchmark(BENCHMARK, model_type="openai_model", overrides=overrides):
        yielded = time.monotonic()
        leaving = time.monotonic()
    return Round(yielded - began, time.monotonic() - leaving)


def floor(overrides: dict[str, str]) -> Round:
    """The same containers with the bare SDK: what the engine itself needs for them."""
    config = to_plain(load_config(serving_config_paths(BENCHMARK, "openai_model"), overrides, serving=True))
    topology = build_topology(config)
    engine = DockerEngine.connect(os.environ)
    images = ensure_server_images(engine, topology, ())
    engine.close()
    served = {server.name: server for server in topology.servers}
    network = f"floor-{time.monotonic_ns()}"
    specs = container_specs(topology, session_id="floor", network=network, labels={}, images=images, registry_port=None)
    lines = {
        spec.alias: bootstrap_line(
            session_id="floor",
            server_name=spec.alias,
            session_secret="00",
            config={} if spec.alias == REGISTRY else container_view(topology, served[spec.alias], {}),
            **({"awaited": []} if spec.alias == REGISTRY else {}),
        )
        for spec in specs
    }
    client = docker.from_env(timeout=60, max_pool_size=32).api
    began = time.monotonic()
    network_id = client.create_network(network)["Id"]
    with ThreadPoolExecutor(len(specs)) as pool:
        containers = list(pool.map(lambda spec: _start(client, spec, lines[spec.alias]), specs))
        ready = time.monotonic()
        list(pool.map(lambda container: client.remove_container(container, v=True, force=True), containers))
    client.remove_network(network_id)
    removed = time.monotonic()
    client.close()
    return Round(ready - began, removed - ready)


def _start(client: docker.APIClient, spec: ContainerSpec, line: bytes) -> str:
    container = str(client.create_container_from_config(**spec.to_create_kwargs())["Id"])
    stdin = client.attach_socket(container, params={"stdin": 1, "stream": 1})
    client.start(container)
    stdin._sock.sendall(line)
    stdin._response.close()
    stdin.close()
    (binding,) = client.inspect_container(container)["NetworkSettings"]["Ports"][f"{spec.port}/tcp"]
    path = "/" if spec.alias == REGISTRY else "/ready"
    while not _answers(int(binding["HostPort"]), path):
        time.sleep(0.02)
    return container


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def percentiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"p50 {statistics.median(ordered):.2f}  p95 {ordered[int(0.95 * (len(ordered) - 1))]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    client = docker.from_env().api
    pool = client.inspect_network("bridge")["IPAM"]["Config"][0]
    # an engine that has just made its bridge does not say
    gateway = pool.get("Gateway") or str(next(ipaddress.ip_network(pool["Subnet"]).hosts()))
    client.close()
    # on the bridge's own address, which containers reach as it is: the floor has no relay
    with ScriptedEndpoint(lambda prompt: "", address=gateway) as endpoint:
        ours(endpoint.overrides())  # images built, caches warm
        rounds = [(ours(endpoint.overrides()), floor(endpoint.overrides())) for _ in range(arguments.rounds)]
    for what in ("start_s", "teardown_s"):
        mine = [getattr(a, what) for a, _ in rounds]
        bare = [getattr(b, what) for _, b in rounds]
        ratios = [a / b for a, b in zip(mine, bare, strict=True)]
        print(f"{what:11} ours {percentiles(mine)}  bare SDK {percentiles(bare)}  ratio {percentiles(ratios)}")


if __name__ == "__main__":
    main()
