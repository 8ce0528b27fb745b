"""How long planning takes and how much memory, against one orjson pass over the same file.

    python -m tests.benchmarks.plan_rows [--rows 10000 100000 1000000] [--repeats 3]

Each measurement has a process of its own; what is measured begins after its imports. The floor, `orjson`, reads the
file line by line and keeps the rows. The figures to quote are the ratios to it in the same run: seconds differ from
machine to machine and from minute to minute.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.config.resolve import to_plain
from nemo_gym.environment import PlannedBenchmark, plan_benchmark
from nemo_gym.environment.collated_files import collate_config, plan_of
from nemo_gym.environment.in_process import _benchmark_config
from tests.support.made_benchmark import MadeBenchmark, make_benchmark

NAME = "many_rows"
CACHED = {"use_cached_prepared_benchmarks": True}
_QUESTION = "A train leaves at {0} o'clock and another {1} minutes later; when do they meet, if they meet at all? " * 3
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Cost:
    """``peak`` is the memory that was needed beyond that of the interpreter and its imports, in bytes."""

    seconds: float
    peak: int


def orjson_pass(made: MadeBenchmark) -> Any:
    with made.data_file.open("rb") as lines:
        return [orjson.loads(line) for line in lines]


def plan_rows(made: MadeBenchmark) -> Any:
    return plan_benchmark(NAME, overrides=CACHED)


def plan_only(made: MadeBenchmark) -> Any:
    """What `gym eval plan` does: no rows are kept."""
    config = to_plain(_benchmark_config(str(made.config_file), CACHED))
    return plan_of(config, collate_config(config)).to_json()


def to_json(made: MadeBenchmark) -> Callable[[], Any]:
    planned = plan_benchmark(NAME, overrides=CACHED)
    return planned.to_json


def from_json(made: MadeBenchmark) -> Callable[[], Any]:
    text = plan_benchmark(NAME, overrides=CACHED).to_json()
    return lambda: PlannedBenchmark.from_json(text)


MEASURED: dict[str, Callable[[MadeBenchmark], Any]] = {
    "orjson": orjson_pass,
    "plan_benchmark": plan_rows,
    "gym eval plan": plan_only,
}
# What they need before they begin costs more memory than they do: their time alone is told.
TIMED: dict[str, Callable[[MadeBenchmark], Callable[[], Any]]] = {"to_json": to_json, "from_json": from_json}


def rows(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "task_id": f"task-{number}",
            "question": _QUESTION.format(number, number % 60),
            "expected_answer": number * 7,
            "verifier_metadata": {"kind": "number", "tolerance": 0.001, "tags": ["trains", "time", str(number % 13)]},
        }


def measure(name: str, made: MadeBenchmark) -> Cost:
    """In this process."""
    os.chdir(made.root)
    if name in TIMED:
        call: Callable[[], Any] = TIMED[name](made)
    else:
        # Once on a few rows, so that nothing is imported while it is measured.
        os.chdir(made.root.with_name("warm"))
        MEASURED[name](MadeBenchmark(Path.cwd(), NAME))
        os.chdir(made.root)
        call = lambda: MEASURED[name](made)  # noqa: E731
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    kept = call()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del kept
    return Cost(seconds, (peak - before) * _PEAK_UNIT)


def measure_apart(name: str, root: Path) -> Cost:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.plan_rows", "--measure", name, "--root", str(root)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Cost(**json.loads(done.stdout))


def make(root: Path, count: int) -> MadeBenchmark:
    root.mkdir()
    made = make_benchmark(root, NAME, script="def prepare(output_path): ...", prompt={"user": "{question}"})
    made.data_file.parent.mkdir()
    with made.data_file.open("wb") as output:
        output.writelines(orjson.dumps(row) + b"\n" for row in rows(count))
    return made


def report(count: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="nemo-gym-rows-") as scratch:
        made = make(Path(scratch, "root"), count)
        make(Path(scratch, "warm"), 10)
        print(f"{count:,} rows, {made.data_file.stat().st_size / 1e6:,.1f} MB", flush=True)
        floor: Cost | None = None
        for name in (*MEASURED, *TIMED):
            costs = [measure_apart(name, made.root) for _ in range(repeats)]
            best = Cost(min(cost.seconds for cost in costs), min(cost.peak for cost in costs))
            floor = floor or best
            line = f"  {name:<15} {best.seconds:8.3f} s  {best.seconds / floor.seconds:5.2f}x"
            if name in MEASURED:
                line += f"   peak {best.peak / 1e6:8.1f} MB  {best.peak / max(floor.peak, 1):5.2f}x"
            print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=[*MEASURED, *TIMED], help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        cost = measure(arguments.measure, MadeBenchmark(arguments.root, NAME))
        print(json.dumps({"seconds": cost.seconds, "peak": cost.peak}))
        return
    for count in arguments.rows:
        report(count, arguments.repeats)


if __name__ == "__main__":
    main()
