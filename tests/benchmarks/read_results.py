"""How long reading, aggregating and comparing stored results takes and how much memory, against one orjson pass.

    python -m tests.benchmarks.read_results [--results 10000 100000] [--repeats 3]

Each measurement has a process of its own, and begins after its imports. The floor, `orjson`, parses each line of the
rollouts file and keeps nothing. Both shards together hold as many results as the whole run. The figures to quote are
the ratios to the floor in the same run: seconds differ from machine to machine and from minute to minute.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.environment.aggregation import aggregate_runs
from nemo_gym.environment.run_comparison import compare_runs
from nemo_gym.environment.stored_runs import read_run
from nemo_gym.rollouts.profile import profile_tasks
from nemo_gym.rollouts.results import ResultPaths

REPEATS_OF_A_TASK = 4
_WORDS = ("train", "leaves", "noon", "nobody", "knows", "which", "way", "wait", "count", "hours", "again", "the", "and")
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def orjson_pass(root: Path) -> Any:
    with (root / "a.jsonl").open("rb") as lines:
        return sum(len(orjson.loads(line)) for line in lines)


def read(root: Path) -> Any:
    return read_run(root / "a.jsonl")


def figures(root: Path) -> Any:
    return read_run(root / "a.jsonl").figures()


def profile(root: Path) -> Any:
    return profile_tasks(read_run(root / "a.jsonl").results)


def compare(root: Path) -> Any:
    return compare_runs(read_run(root / "a.jsonl"), read_run(root / "b.jsonl"))


def aggregate(root: Path) -> Any:
    return aggregate_runs([root / "s1.jsonl", root / "s2.jsonl"], ResultPaths(root / "out.jsonl"))


MEASURED: dict[str, Callable[[Path], Any]] = {
    "orjson": orjson_pass,
    "read": read,
    "figures": figures,
    "profile": profile,
    "compare (2 runs)": compare,
    "aggregate (files)": aggregate,
}


def records(count: int, seed: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows and their results, of about the size of real ones: 1.6 kB."""
    chance = random.Random(seed)
    for number in range(count):
        task, repeat = divmod(number, REPEATS_OF_A_TASK)
        question = " ".join(chance.choices(_WORDS, k=60))
        row = {
            "task_id": f"task-{task}",
            "responses_create_params": {"input": [{"role": "user", "content": question}], "temperature": 0.7},
            "expected_answer": str(task * 7),
            "agent_ref": {"type": "responses_api_agents", "name": "agent"},
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
        }
        text = " ".join(chance.choices(_WORDS, k=120))
        content = [{"type": "output_text", "text": text, "annotations": []}]
        usage = {"input_tokens": chance.randint(60, 90), "output_tokens": chance.randint(20, 400)}
        response = {"id": f"r{number}", "output": [{"type": "message", "content": content}], "usage": usage}
        reward = float(chance.random() < (task % 10) / 10)
        yield row, {**row, "response": response, "reward": reward, "_ng_elapsed_s": round(chance.random() * 9, 3)}


def write(path: Path, count: int, seed: int, keep: Callable[[int], bool] = lambda task: True) -> None:
    with path.open("wb") as results, path.with_name(f"{path.stem}_materialized_inputs.jsonl").open("wb") as inputs:
        for row, result in records(count, seed):
            if keep(row["_ng_task_index"]):
                inputs.write(orjson.dumps(row) + b"\n")
                results.write(orjson.dumps(result) + b"\n")
    path.with_name(f"{path.stem}_failures.jsonl").touch()


def make(root: Path, count: int) -> None:
    root.mkdir()
    write(root / "a.jsonl", count, 1)
    write(root / "b.jsonl", count, 1)
    for shard in (1, 2):
        write(root / f"s{shard}.jsonl", count, 1, lambda task, shard=shard: task % 2 == shard - 1)  # type: ignore[misc]


def measure(name: str, root: Path) -> tuple[float, int]:
    """Seconds, and bytes beyond what the interpreter and its imports need; in this process."""
    MEASURED[name](root.with_name("warm"))  # so that nothing is imported while it is measured
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    kept = MEASURED[name](root)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del kept
    return seconds, (peak - before) * _PEAK_UNIT


def report(count: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="nemo-gym-results-") as scratch:
        root = Path(scratch, "root")
        make(root, count)
        make(Path(scratch, "warm"), 20)
        print(f"{count:,} results, {(root / 'a.jsonl').stat().st_size / 1e6:,.1f} MB", flush=True)
        floor = 0.0
        for name in MEASURED:
            costs = []
            for _ in range(repeats):
                command = [
                    sys.executable,
                    "-m",
                    "tests.benchmarks.read_results",
                    "--measure",
                    name,
                    "--root",
                    str(root),
                ]
                costs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            seconds, peak = min(cost[0] for cost in costs), min(cost[1] for cost in costs)
            floor = floor or seconds
            print(f"  {name:<18} {seconds:7.3f} s  {seconds / floor:5.2f}x   peak {peak / 1e6:7.1f} MB", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--results", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=list(MEASURED), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.root)))
        return
    for count in arguments.results:
        report(count, arguments.repeats)


if __name__ == "__main__":
    main()
