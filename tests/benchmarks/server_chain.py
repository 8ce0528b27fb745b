"""How fast rollouts go through the servers when the model costs nothing, against the same hops in plain aiohttp.

    python -m tests.benchmarks.server_chain [--concurrency 1 16 64 256] [--rounds 5] [--seconds 3] [--json]

Each server is a process of its own, started as a container starts it: `python app.py`, its configuration in one line
on stdin. So are the endpoint, which answers at once, and the caller. Four ways are measured in turn, round after round:
`bare` (plain aiohttp, nothing checked: the limit), `plain` (`/run`), `prefixed` (`/ng-rollout/<id>/run`, which is what
`gym eval run` sends) and `observed` (the same with `observability_enabled`, so that each server records it). The
figures to quote are the ratios to `bare` in the same run, and the CPU time of a rollout: rollouts per second differ
from machine to machine and from minute to minute.

`--workers` measures instead what several workers bring to a costly verifier: one that hashes, for which there must be
idle CPUs, and one that holds its process for 20 ms without using any, which shows how requests are spread.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "chain"
READY_S = 30.0
MOST_PER_ROUND = 50_000

BARE, PLAIN, PREFIXED, OBSERVED = "bare", "plain", "prefixed", "observed"
PATHS = {BARE: "/run", PLAIN: "/run", PREFIXED: "/ng-rollout/{rollout}/run", OBSERVED: "/ng-rollout/{rollout}/run"}

_QUESTION = "A train leaves at nine o'clock and another 42 minutes later; when do they meet, if they meet at all? "
ROW = {
    "responses_create_params": {
        "input": [
            {"role": "system", "content": "Answer with a number, and with the steps that lead to it."},
            {"role": "user", "content": _QUESTION * 8},
        ],
        "temperature": 0.7,
        "top_p": 0.95,
        "max_output_tokens": 2048,
    },
    "agent_ref": {"type": "responses_api_agents", "name": "agent"},
    "question": _QUESTION,
    "expected_answer": "42",
    "verifier_metadata": {"kind": "number", "tolerance": 0.001, "tags": ["trains", "time"]},
    "_ng_task_index": 7,
    "_ng_rollout_index": 0,
}
COSTS: dict[str, dict[str, Any]] = {"hashes": {"hashes": 10_000}, "holds": {"holds_s": 0.02}}
OUTPUT = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42 " * 200}]}]


@dataclass(frozen=True)
class Program:
    """A running server. Its workers are its children."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def family(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_s(self) -> float:
        """CPU time so far, of its workers too, as the scheduler counts it: clock ticks are too coarse for a round."""
        paths = (path for member in self.family() for path in Path(f"/proc/{member.pid}/task").glob("*/schedstat"))
        return sum(int(path.read_text().split()[0]) for path in paths) / 1e9

    def memory(self) -> dict[str, float]:
        """MB resident, and MB with what it shares divided among those who share it."""
        found = [member.memory_full_info() for member in self.family()]
        return {"rss_mb": sum(each.rss for each in found) / 1e6, "pss_mb": sum(each.pss for each in found) / 1e6}


def free_ports(count: int) -> list[int]:
    with ExitStack() as holders:
        sockets = [holders.enter_context(socket.socket()) for _ in range(count)]
        for holder in sockets:
            holder.bind(("127.0.0.1", 0))
        return [int(holder.getsockname()[1]) for holder in sockets]


@contextmanager
def program(
    name: str, port: int, command: Sequence[str], folder: Path, log: IO[bytes], line: bytes
) -> Iterator[Program]:
    """A process that serves, from its first answer to `/ready` (or any answer at all) on."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as in_memory,  # as a container's /tmp
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**environment, "TMPDIR": in_memory},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            input_of(process).write(line)
            input_of(process).flush()
            running = Program(name, port, process)
            wait_until_ready(running)
            yield running
            process.terminate()
            process.wait(10)
        finally:
            process.kill()


def input_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdin is None:
        raise RuntimeError("a process without stdin")
    return process.stdin


def wait_until_ready(running: Program) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            urllib.request.urlopen(f"{running.url}/ready", timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:  # a bare one has no such route
                return
        except OSError:
            pass
        if time.monotonic() > deadline or running.process.poll() is not None:
            raise RuntimeError(f"{running.name} does not get ready")
        time.sleep(0.02)


def bootstrap_line(name: str, config: Mapping[str, Any]) -> bytes:
    line = {
        "v": 1,
        "session_id": "s",
        "server_name": name,
        "config": config,
        "session_secret": "ab" * 16,
        "token": None,
    }
    return json.dumps(line).encode() + b"\n"


def config_of(endpoint: int, agent: int, model: int, resources: int) -> dict[str, Any]:
    """The configuration of the three servers, as a container gets its own part of it."""
    here = {"host": "127.0.0.1"}
    references = {
        "resources_server": {"type": "resources_servers", "name": "resources"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    endpoint_settings = {"openai_base_url": f"http://127.0.0.1:{endpoint}/v1", "openai_model": "zero-latency"}
    return {
        "agent": {"responses_api_agents": {"simple_agent": {**here, "port": agent, **references}}},
        "model": {"responses_api_models": {"openai_model": {**here, "port": model, **endpoint_settings}}},
        "resources": {"resources_servers": {"counter": {**here, "port": resources}}},
    }


@contextmanager
def real_chain(endpoint: int, log: IO[bytes], *, observed: bool = False) -> Iterator[dict[str, Program]]:
    agent, model, resources = free_ports(3)
    config = {**config_of(endpoint, agent, model, resources), "observability_enabled": observed}
    images = ROOT / "images"
    places = {
        "resources": (resources, ["counter.py"], PROGRAMS),
        "model": (model, ["app.py"], images / "responses_api_models" / "openai_model"),
        "agent": (agent, ["app.py"], images / "responses_api_agents" / "simple_agent"),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(program(name, port, command, folder, log, bootstrap_line(name, config)))
            for name, (port, command, folder) in places.items()
        }


@contextmanager
def bare_chain(endpoint: int, log: IO[bytes]) -> Iterator[dict[str, Program]]:
    agent, model, resources = free_ports(3)
    behind = {"resources": (resources, []), "model": (model, [endpoint]), "agent": (agent, [resources, model])}
    with ExitStack() as stack:
        yield {name: stack.enter_context(bare(name, port, log, others)) for name, (port, others) in behind.items()}


def bare(name: str, port: int, log: IO[bytes], behind: Sequence[int] = ()) -> Any:
    return program(name, port, ["bare.py", name, str(port), *map(str, behind)], PROGRAMS, log, b"")


class Caller:
    """The process that sends the requests."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def send(self, to: Program, path: str, body: Mapping[str, Any], concurrency: int, seconds: float) -> dict[str, Any]:
        """The caller's reply for one round of requests; one that failed ends the measurement."""
        order = {"url": to.url, "path": path, "body": body, "concurrency": concurrency, "seconds": seconds}
        order["most"] = MOST_PER_ROUND
        input_of(self.process).write(json.dumps(order).encode() + b"\n")
        input_of(self.process).flush()
        line = self.process.stdout.readline() if self.process.stdout else b""
        if not line:
            raise RuntimeError("the caller has ended")
        result: dict[str, Any] = json.loads(line)
        if result["wrong"]:
            raise RuntimeError(f"{len(result['wrong'])} rollouts failed; the first: {result['wrong'][0]}")
        return result


@contextmanager
def caller() -> Iterator[Caller]:
    command = [sys.executable, "load.py"]
    with subprocess.Popen(command, cwd=PROGRAMS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as process:
        try:
            yield Caller(process)
        finally:
            process.kill()


@dataclass
class Measured:
    """The rounds of one way at one concurrency."""

    latencies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)

    def add(self, result: Mapping[str, Any], cpu_s: Mapping[str, float]) -> None:
        self.latencies += result["latencies"]
        self.seconds += result["seconds"]
        self.rates.append(len(result["latencies"]) / result["seconds"])
        for name, spent in cpu_s.items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + spent

    def summary(self, limit: Measured) -> dict[str, Any]:
        cuts = statistics.quantiles(self.latencies, n=100)
        count = len(self.latencies)
        cpu_ms = {name: spent / count * 1e3 for name, spent in self.cpu_s.items()}
        ratios = [own / bare for own, bare in zip(self.rates, limit.rates, strict=True)]
        limit_cpu_ms = sum(limit.cpu_s.values()) / len(limit.latencies) * 1e3
        return {
            "rollouts": count,
            "rollouts_per_s": count / self.seconds,
            "ratio": statistics.median(ratios),
            "p50_ms": cuts[49] * 1e3,
            "p99_ms": cuts[98] * 1e3,
            "cpu_ms_per_rollout": {**cpu_ms, "all": sum(cpu_ms.values())},
            "cpu_ratio": limit_cpu_ms / sum(cpu_ms.values()),
        }


def measure_chain(concurrencies: Sequence[int], rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryFile() as log, ExitStack() as stack:
        (port,) = free_ports(1)
        endpoint = stack.enter_context(bare("endpoint", port, log))
        ours, limit = stack.enter_context(real_chain(port, log)), stack.enter_context(bare_chain(port, log))
        observed = stack.enter_context(real_chain(port, log, observed=True))
        calls = stack.enter_context(caller())
        chains = {BARE: limit, PLAIN: ours, PREFIXED: ours, OBSERVED: observed}
        idle = {name: each.memory() for name, each in ours.items()}
        for way, chain in chains.items():
            calls.send(chain["agent"], PATHS[way], ROW, 16, 1.0)
        found = {}
        for concurrency in concurrencies:
            measured = {way: Measured() for way in chains}
            for number in range(rounds):
                ways = list(chains)
                for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                    members = [*chains[way].values(), endpoint]
                    before = {each.name: each.cpu_s() for each in members}
                    result = calls.send(chains[way]["agent"], PATHS[way], ROW, concurrency, seconds)
                    measured[way].add(result, {each.name: each.cpu_s() - before[each.name] for each in members})
            found[concurrency] = {way: each.summary(measured[BARE]) for way, each in measured.items()}
            progress(f"concurrency {concurrency} is measured")
        after = {name: each.memory() for name, each in ours.items()}
    return {"idle": idle, "after_load": after, "concurrency": found}


def measure_workers(counts: Sequence[int], rounds: int, seconds: float) -> dict[str, Any]:
    """Verifications per second of a stateless server with as many workers, and what they cost in memory."""
    rows = {kind: {**ROW, "response": {"output": OUTPUT}, **cost} for kind, cost in COSTS.items()}
    with tempfile.TemporaryFile() as log, ExitStack() as stack:
        calls, servers = stack.enter_context(caller()), {}
        for count, port in zip(counts, free_ports(len(counts)), strict=True):
            entry = {"costly": {"host": "127.0.0.1", "port": port, "num_workers": count}}
            line = bootstrap_line("costly", {"costly": {"resources_servers": entry}})
            serving = program(f"costly{count}", port, ["counter.py", "costly"], PROGRAMS, log, line)
            servers[count] = stack.enter_context(serving)
        idle = {count: each.memory() for count, each in servers.items()}
        rates: dict[int, dict[str, list[float]]] = {count: {kind: [] for kind in rows} for count in counts}
        for _ in range(rounds):
            for kind, row in rows.items():
                for count, each in servers.items():
                    result = calls.send(each, "/verify", row, 64, seconds)
                    rates[count][kind].append(len(result["latencies"]) / result["seconds"])
    medians = {count: {kind: statistics.median(each) for kind, each in rates[count].items()} for count in counts}
    return {str(count): {"verifications_per_s": medians[count], **idle[count]} for count in counts}


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chain_table(result: Mapping[str, Any]) -> str:
    names = ["agent", "model", "resources", "endpoint", "all"]
    lines = ["", "                                          latency, ms    CPU ms per rollout"]
    head = "at once  way        rollouts/s   ratio      p50      p99" + "".join(f"{name:>11}" for name in names)
    lines.append(head + "   ratio")
    for concurrency, ways in result["concurrency"].items():
        for way, each in ways.items():
            cpu = "".join(f"{each['cpu_ms_per_rollout'][name]:11.3f}" for name in names)
            lines.append(
                f"{concurrency:7}  {way:<9} {each['rollouts_per_s']:11.0f} {each['ratio']:7.2f} {each['p50_ms']:8.2f} "
                f"{each['p99_ms']:8.2f}{cpu} {each['cpu_ratio']:7.2f}"
            )
    lines.append("")
    for name, memory in result["idle"].items():
        after = result["after_load"][name]["rss_mb"]
        lines.append(f"{name:<10} {memory['rss_mb']:5.1f} MB resident when idle, {after:5.1f} MB after these rollouts")
    return "\n".join(lines)


def workers_table(result: Mapping[str, Any]) -> str:
    lines = [
        "         verifications/s",
        f"workers {''.join(f'{kind:>10}' for kind in COSTS)}   resident, MB   its share, MB",
    ]
    for count, each in result.items():
        rates = "".join(f"{each['verifications_per_s'][kind]:10.0f}" for kind in COSTS)
        lines.append(f"{count:>7} {rates}  {each['rss_mb']:13.1f} {each['pss_mb']:15.1f}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one round of one way (default: 3)")
    parser.add_argument("--workers", type=int, nargs="+", help="measure a costly verifier with as many workers")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.workers:
        result, table = measure_workers(arguments.workers, arguments.rounds, arguments.seconds), workers_table
    else:
        result, table = measure_chain(arguments.concurrency, arguments.rounds, arguments.seconds), chain_table
    print(json.dumps(result, indent=2) if arguments.json else table(result))


if __name__ == "__main__":
    main()
