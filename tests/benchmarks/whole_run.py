"""A whole run of gsm8k in containers: its speed against ``TaskRunner`` alone, and its memory with many in flight.

    python -m tests.benchmarks.whole_run speed [--repeats 4] [--concurrency 32]
    python -m tests.benchmarks.whole_run memory [--in-flight 2500] [--repeats 8] [--delay-s 20]

``speed`` serves gsm8k once, with an endpoint that answers at once, and runs all 1,319 tasks with their repeats in two
ways against the same servers: with ``TaskRunner.run_task`` from a plain loop, which writes nothing, and with ``gym eval
run --registry``, which is another process and writes everything. ``memory`` has every model call take ``--delay-s``,
and reads the resident memory of ``gym eval run`` and the open descriptors of the engine's proxy of the agent's port
while rollouts are queued and in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.containers.port_proxy import is_proxy_of
from nemo_gym.environment import PlannedBenchmark, TaskRunner, plan_benchmark, serve_benchmark
from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.registry_client import RegistryAddress

BENCHMARK = "gsm8k"
SAMPLE_EVERY_S = 0.5


@contextmanager
def slow_endpoint(delay_s: float) -> Iterator[dict[str, Any]]:
    """The overrides that name an endpoint of its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.chain.slow_endpoint", str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("a process without stdout")
            port = int(process.stdout.readline())
            yield {
                "policy_base_url": f"http://127.0.0.1:{port}/v1",
                "policy_api_key": "none",
                "policy_model_name": "scripted",
            }
        finally:
            process.kill()


async def run_tasks(planned: PlannedBenchmark, registry: BaseServerConfig, repeats: int, concurrency: int) -> float:
    """Seconds for every task and repeat with ``TaskRunner`` alone."""
    jobs = iter([task for task in planned.task_ids() for _ in range(repeats)])
    async with TaskRunner(planned.rows, registry_server=registry) as runner:

        async def work() -> None:
            for task in jobs:
                await runner.run_task(task)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        return time.perf_counter() - started


def run_command(registry: BaseServerConfig, output: Path, repeats: int, concurrency: int) -> list[str]:
    """``gym eval run`` against servers that run already."""
    where = ["--registry", f"{registry.host}:{registry.port}", "--output", str(output)]
    some = ["--num-repeats", str(repeats), "--concurrency", str(concurrency), "--json"]
    cached = "use_cached_prepared_benchmarks=true"
    return [sys.executable, "-m", "nemo_gym", "eval", "run", "--benchmark", BENCHMARK, *where, *some, cached]


def measure_speed(planned: PlannedBenchmark, repeats: int, concurrency: int) -> dict[str, Any]:
    rollouts = len(planned.task_ids()) * repeats
    with (
        tempfile.TemporaryDirectory() as folder,
        slow_endpoint(0.0) as overrides,
        serve_benchmark(BENCHMARK, overrides=overrides) as registry,
    ):
        asyncio.run(run_tasks(planned, registry, 1, concurrency))  # everything is warm afterwards
        alone_s = asyncio.run(run_tasks(planned, registry, repeats, concurrency))
        output = Path(folder, "x.jsonl")
        started = time.perf_counter()
        done = subprocess.run(
            run_command(registry, output, repeats, concurrency), check=True, capture_output=True, text=True
        )
        whole_s = time.perf_counter() - started
        run_s = json.loads(done.stdout)["phases_s"]["run"]
        again_s = asyncio.run(run_tasks(planned, registry, repeats, concurrency))
        written = sum(1 for _ in output.open("rb"))
    alone = 2 * rollouts / (alone_s + again_s)
    return {
        "rollouts": rollouts,
        "results written": written,
        "concurrency": concurrency,
        "TaskRunner alone, rollouts/s": round(alone, 1),
        "gym eval run, its run phase, rollouts/s": round(rollouts / run_s, 1),
        "of TaskRunner's": round(rollouts / run_s / alone, 3),
        "gym eval run, the whole process, s": round(whole_s, 1),
    }


def measure_memory(planned: PlannedBenchmark, repeats: int, in_flight: int, delay_s: float) -> dict[str, Any]:
    rollouts = len(planned.task_ids()) * repeats
    with (
        tempfile.TemporaryDirectory() as folder,
        slow_endpoint(delay_s) as overrides,
        serve_benchmark(BENCHMARK, overrides=overrides) as registry,
    ):
        output = Path(folder, "x.jsonl")
        port = asyncio.run(agent_port(registry))
        proxies = [each for each in psutil.process_iter(["cmdline"]) if is_proxy_of(each.info["cmdline"] or [], port)]
        samples: list[tuple[float, int, int]] = []
        started = time.perf_counter()
        command = run_command(registry, output, repeats, in_flight)
        with Path(folder, "figures.json").open("w+") as shown, subprocess.Popen(command, stdout=shown) as process:
            runner = psutil.Process(process.pid)
            while process.poll() is None:
                written = output.read_bytes().count(b"\n") if output.is_file() else 0
                with_proxy = max((each.num_fds() for each in proxies), default=0)
                samples.append((runner.memory_info().rss / 1e6, written, with_proxy))
                time.sleep(SAMPLE_EVERY_S)
            seconds = time.perf_counter() - started
            shown.seek(0)
            figures = json.load(shown)
    quarters = [
        round(max((rss for rss, written, _ in samples if low < written <= high), default=0.0), 1)
        for low, high in ((n * rollouts // 4, (n + 1) * rollouts // 4) for n in range(4))
    ]
    return {
        "rollouts queued": rollouts,
        "in flight": in_flight,
        "seconds": round(seconds, 1),
        "results": figures["rollouts"],
        "most resident memory, MB": round(max(rss for rss, _, _ in samples), 1),
        "by quarters of the results, MB": quarters,
        "most descriptors of the agent's proxy": max(count for _, _, count in samples),
    }


async def agent_port(registry: BaseServerConfig) -> int:
    """The published port of the benchmark's agent."""
    helper = RolloutCollectionHelper()
    view = await helper.get_host_view(RegistryAddress(registry.host, registry.port, registry.token))
    (url,) = view.agent_urls.values()
    return int(url.rpartition(":")[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "memory"])
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=2500)
    parser.add_argument("--delay-s", type=float, default=20.0)
    arguments = parser.parse_args()
    planned = plan_benchmark(BENCHMARK)
    if arguments.what == "speed":
        figures = measure_speed(planned, arguments.repeats or 4, arguments.concurrency)
    else:
        figures = measure_memory(planned, arguments.repeats or 8, arguments.in_flight, arguments.delay_s)
    for name, value in figures.items():
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
