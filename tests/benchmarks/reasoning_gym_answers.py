"""Whether the server scores each generator's own answers 1, and answers that are not right less.

    python -m tests.benchmarks.reasoning_gym_answers [--size 10] [GENERATOR ...]

Makes puzzles of every flavor of reasoning_gym (which needs its packages from an index), serves the resources server in
its container, and asks it. Prints a line for each generator that shows anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from nemo_gym.environment import plan_benchmark, serve_benchmark

ROOT = Path(__file__).parents[2]
FLAVORS = sorted(path.stem for path in (ROOT / "benchmarks" / "reasoning_gym").glob("*.yaml"))
WRONG = ("", "I do not know", "[]", "-1", "\u2603" * 50, "__import__('os').getpid()")
# What the generator's own scorer takes for right, and solves nothing.
ALSO_WRONG = {
    "coin_flip": ("0.1", "0.3", "0.9"),
    "complex_arithmetic": ("nan", "nan + nani"),
    "number_sorting": tuple(f"[{', '.join(['NaN'] * count)}]" for count in range(3, 11)),
    "polynomial_multiplication": ("expand((x+1)*(x+2))",),
    "puzzle24": ("(10*5 - 1)/2",),
}


async def main(chosen: list[str], size: int) -> int:
    rows = {name: planned_rows(name, size) for name in chosen}
    faults = 0
    overrides = {"prepare_script_args": {"generator": chosen[0]}}
    with serve_benchmark("reasoning_gym", model_type="llama_cpp_model", overrides=overrides) as registry:
        address = f"http://{registry.host}:{registry.port}/server_instances"
        async with aiohttp.ClientSession() as session, session.get(address) as reply:
            servers = {server["name"]: server["url"] for server in await reply.json()}
        async with aiohttp.ClientSession(servers["reasoning_gym_resources_server"]) as session:
            for name in chosen:
                faults += await examine(session, name, rows[name])
    sys.stdout.write(f"{len(chosen)} generators, {sum(map(len, rows.values()))} puzzles, {faults} at fault\n")
    return 1 if faults else 0


def planned_rows(generator: str, size: int) -> list[dict[str, Any]]:
    arguments = {"prepare_script_args": {"size": size}}
    return plan_benchmark(f"reasoning_gym/{generator}", overrides=arguments).rows


async def examine(session: aiohttp.ClientSession, name: str, rows: list[dict[str, Any]]) -> int:
    """1 when the server is wrong about an answer of this generator."""
    began = time.monotonic()
    right = [await reward(session, row, row["answer"]) for row in rows if is_solved(row)]
    elapsed_s = time.monotonic() - began
    wrong = [await reward(session, row, answer) for row in rows for answer in wrong_answers(row)]
    if all(r == 1.0 for r in right) and all(r < 1.0 for r in wrong):
        if not right:
            sys.stdout.write(f"{name}: gives no answers of its own; wrong ones {dict(Counter(wrong))}\n")
        elif elapsed_s > len(right):
            sys.stdout.write(f"{name}: right, and slow: {elapsed_s / len(right):.1f} s an answer\n")
        return 0
    sys.stdout.write(f"{name}: right answers {dict(Counter(right))}, wrong ones {dict(Counter(wrong))}\n")
    return 1


def is_solved(row: dict[str, Any]) -> bool:
    """Whether its generator gives a puzzle an answer, and not the integral that was asked for."""
    return row["answer"] is not None and "Integral(" not in row["answer"]


def wrong_answers(row: dict[str, Any]) -> Iterator[str]:
    yield from (answer for answer in (*WRONG, *ALSO_WRONG.get(row["generator"], ())) if answer != row["answer"])
    if row["answer"] is not None and not is_solved(row):
        yield row["answer"]
    if "integrand" in row["metadata"]:
        yield f"integrate({row['metadata']['integrand']}, {row['metadata']['variable']})"


async def reward(session: aiohttp.ClientSession, row: dict[str, Any], answer: str) -> float:
    content = [{"type": "output_text", "text": f"<answer>{answer}</answer>"}]
    response = {"id": "r", "output": [{"type": "message", "role": "assistant", "content": content}]}
    async with session.post("/verify", data=json.dumps({**row, "response": response})) as reply:
        if reply.status != 200:
            raise RuntimeError(f"{row['task_id']}: HTTP {reply.status}: {await reply.text()}")
        return float((await reply.json())["reward"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("generators", nargs="*", default=[name for name in FLAVORS if name not in ("config", "prompt")])
    parser.add_argument("--size", type=int, default=10, help="puzzles for each generator")
    chosen = parser.parse_args()
    raise SystemExit(asyncio.run(main(chosen.generators, chosen.size)))
