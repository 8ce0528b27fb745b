"""How long the package takes to be there: imports, the command line's first answers, and a prepared plan.

    python -m tests.benchmarks.start_up [--rounds 20]

Each figure is the time of a whole process, and its ratio to `python -c pass` of the same interpreter in the same
run, one after the other in turn: seconds differ from machine to machine and from minute to minute.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

FLOOR = "python -c pass"
PYTHON = sys.executable
COMMANDS = {
    FLOOR: [PYTHON, "-c", "pass"],
    "import nemo_gym.environment": [PYTHON, "-c", "import nemo_gym.environment"],
    "... and plan_benchmark": [PYTHON, "-c", "from nemo_gym.environment import plan_benchmark"],
    "... and TaskRunner": [PYTHON, "-c", "from nemo_gym.environment import TaskRunner"],
    "gym --help": [PYTHON, "-m", "nemo_gym", "--help"],
    "gym list benchmarks": [PYTHON, "-m", "nemo_gym", "list", "benchmarks"],
    "gym list models --json": [PYTHON, "-m", "nemo_gym", "list", "models", "--json"],
    "gym env resolve": [PYTHON, "-m", "nemo_gym", "env", "resolve", "--benchmark", "ifeval"],
}
# Needs the data of ifeval: prepared once before, from the network or NEMO_GYM_DATA_MIRROR.
PLAN = {
    "gym eval plan (ifeval, prepared)": [
        *[PYTHON, "-m", "nemo_gym", "eval", "plan", "--benchmark", "ifeval"],
        "use_cached_prepared_benchmarks=true",
    ]
}


def seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--plan", action="store_true", help="plan ifeval too, prepared before the first round")
    arguments = parser.parse_args(argv)
    commands = {**COMMANDS, **PLAN} if arguments.plan else COMMANDS
    for command in commands.values():
        seconds(command)
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            taken[name].append(seconds(command))
    floor = statistics.median(taken[FLOOR])
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"{name:<34} {median * 1e3:7.1f} ms  {median / floor:5.1f}x  (least {min(times) * 1e3:.1f} ms)")


if __name__ == "__main__":
    main()
