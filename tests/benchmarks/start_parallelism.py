"""How many containers should be started at once: serving, for each number from 1 to 6, in turn.

    python -m tests.benchmarks.start_parallelism [--rounds 20] [--servers 5]

The servers are the stubs of the fault tests, which cost next to nothing, so that what is measured is the start itself.
The figures to quote are the ratios to the best of the same round: seconds differ from minute to minute.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from nemo_gym.deployment import session as session_module
from nemo_gym.environment import serve_benchmark
from tests.benchmarks.serve_to_yield import percentiles
from tests.support.stub_servers import BENCHMARK, MODEL_TYPE, SERVER, acting, make_stubs

PARALLEL = range(1, 7)


def serve_once(parallel: int, overrides: dict[str, Any]) -> float:
    """Seconds from the call to the yield, with so many containers started at once."""
    session_module._PARALLEL_STARTS = parallel
    began = time.monotonic()
    with serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=overrides):
        return time.monotonic() - began


def more_servers(number: int) -> dict[str, Any]:
    """Overrides that add servers of the stub image to the one that the benchmark declares."""
    settings = {"entrypoint": "app.py", "domain": "other", "description": "One more.", "acts": {}}
    return {f"{SERVER}_{i}": {"resources_servers": {BENCHMARK: settings}} for i in range(number)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--servers", type=int, default=5, help="containers in all, the registry among them")
    arguments = parser.parse_args()
    seconds: dict[int, list[float]] = {parallel: [] for parallel in PARALLEL}
    with tempfile.TemporaryDirectory() as folder:
        make_stubs(Path(folder))
        os.environ["NEMO_GYM_EXTRA_ROOTS"] = folder
        overrides = acting(results_dir=folder, server_stop_grace_seconds=1, **more_servers(arguments.servers - 3))
        serve_once(5, overrides)  # images built, caches warm
        for _ in range(arguments.rounds):
            for parallel in PARALLEL:
                seconds[parallel].append(serve_once(parallel, overrides))
    best = [min(times) for times in zip(*seconds.values(), strict=True)]
    for parallel, times in seconds.items():
        ratios = [mine / least for mine, least in zip(times, best, strict=True)]
        print(f"{parallel} at once: {percentiles(times)} s, to the best of its round {percentiles(ratios)}")


if __name__ == "__main__":
    main()
