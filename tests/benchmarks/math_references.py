"""What the verifier of the mathematics benchmarks says to every right answer there is, and to systematic wrong ones.

::

    python -m tests.benchmarks.math_references [BENCHMARK ...]

Prepares each benchmark (from ``NEMO_GYM_DATA_MIRROR`` or the public address) and puts each row to the verifier's own
finding and comparing, in worker processes as in its server. Right: the expected answer in a box and in a sentence, and
what the source has as its solution. Wrong: the answer changed in one place. Every verdict that is not the one wanted is
printed, and counted in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from images.resources_servers.math_answer.comparison import Expected, clean, is_right, value_of
from nemo_gym.servers.bounded import BoundedCallError, BoundedPool
from nemo_gym.servers.final_answers import find_final_answer

ROOT = Path(__file__).parents[2]
BENCHMARKS = ("gsm8k", "aime24", "amc23", "olympiadbench", "svamp")


class Case(NamedTuple):
    """A text that a model might have written, and whether its answer is right."""

    kind: str
    text: str
    is_right: bool


def script_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_prepare", ROOT / "benchmarks" / name / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(name: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = script_of(name).prepare(Path(folder, "rows.jsonl"))
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cases_of(row: dict[str, Any]) -> Iterator[Case]:
    expected = row["expected_answer"]
    inner = re.sub(r"(?<!\\)\$", "", expected).strip()
    unit = row.get("unit") or ""
    yield Case("right: boxed", f"We compute and find $\\boxed{{{inner}}}$.", True)
    if not re.search(r"=|\\cup|^[a-z]\(", inner):
        yield Case("right: boxed, with a name", f"So \\[ \\boxed{{ans = {inner}}} \\]", True)
    yield Case("right: in a sentence", f"Some steps, 7 of them.\nThe final answer is ${inner}$.", True)
    if re.search(r"[(\[{].*,", inner):
        yield Case(
            "right: boxed, with spaces after its commas", f"\\boxed{{{re.sub(r',(?=[^ ])', ', ', inner)}}}", True
        )
    if unit:
        named = unit if unit.startswith("^") else rf" \text{{ {unit.strip('$')} }}"
        yield Case("right: boxed, with its unit", f"\\boxed{{{inner}{named}}}", True)
        yield Case("wrong: another unit", f"\\boxed{{{inner} \\text{{ lightyears }}}}", False)
    if "<<" in row.get("solution", "") or "\n" in row.get("solution", ""):
        yield Case("right: the source's solution", f"{row['solution']}\n#### {inner}", True)
        yield Case("right: the source's solution without its mark", row["solution"], True)
    elif row.get("solution"):
        yield Case("right: the source's equation, boxed", f"\\boxed{{{row['solution']}}}", True)
    for kind, changed in changes_of(inner):
        yield Case(f"wrong: {kind}", f"\\boxed{{{changed}}}", False)


def changes_of(answer: str) -> Iterator[tuple[str, str]]:
    """The answer with one thing changed."""
    number = re.search(r"\d+", answer)
    if number is not None:
        for kind, by in (("first number + 1", 1), ("first number + 10", 10)):
            yield kind, f"{answer[: number.start()]}{int(number[0]) + by}{answer[number.end() :]}"
        *_, last = re.finditer(r"\d+", answer)
        if last.start() != number.start():
            yield "last number + 1", f"{answer[: last.start()]}{int(last[0]) + 1}{answer[last.end() :]}"
        if int(number[0]):
            yield "a digit more", f"{answer[: number.end()]}0{answer[number.end() :]}"
    if not answer.startswith("0") and "=" not in answer:
        yield (
            "other sign",
            answer[1:] if answer.startswith("-") else f"-{answer}" if answer[0] not in "([\\" else f"-({answer})",
        )
    yield "a further value", f"{answer}, 12345"
    value = value_of(clean(answer), thousands=False)
    parts = [] if isinstance(value, str) else list(value.parts)
    if len(parts) > 1 and all(isinstance(part, str) for part in parts):
        brackets = value.brackets  # type: ignore[union-attr]
        left, right = (brackets[0], brackets[1]) if len(brackets) == 2 and brackets != "{}" else ("", "")
        yield "a value less", left + ", ".join(map(str, parts[:-1])) + right
        if left and len(set(map(str, parts))) > 1:
            yield "turned around", left + ", ".join(map(str, parts[::-1])) + right
        if left == "(" and right == "]":
            yield "other brackets", f"[{', '.join(map(str, parts))})"
    begin = answer.rfind("=") + 1
    letter = re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", answer[begin:])
    if letter is not None:
        yield "a variable less", answer[: begin + letter.start()] + answer[begin + letter.end() :]
    if "frac" in answer:
        flipped = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\\frac{\2}{\1}", answer, count=1)
        if flipped != answer and not re.search(r"\\frac\{1\}\{1\}", answer):
            yield "turned fraction", flipped


async def verdict(pool: BoundedPool, row: dict[str, Any], case: Case) -> tuple[bool | str, float]:
    several = bool(row.get("is_multiple_answer"))
    answer, _ = find_final_answer(case.text, several=several)
    if answer is None:
        return False, 0.0
    expected = Expected(row["expected_answer"], several, row.get("unit"), row.get("tolerance"))
    began = time.monotonic()
    try:
        return await pool.run(is_right, answer, expected), time.monotonic() - began
    except BoundedCallError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began


async def examine(pool: BoundedPool, name: str) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    slowest = 0.0
    for position, row in enumerate(rows_of(name)):
        for case in cases_of(row):
            said, took = await verdict(pool, row, case)
            slowest = max(slowest, took)
            counts[case.kind]["cases"] += 1
            if said is not case.is_right:
                counts[case.kind]["unwanted"] += 1
                where = row.get("task_id", position)
                print(f"{name} {where}: {case.kind}: {case.text[-100:]!r} for {row['expected_answer']!r}: {said}")
    print(f"{name}: the slowest comparison took {slowest:.2f} s")
    return counts


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS)
    names = parser.parse_args().benchmarks
    tables = {}
    async with BoundedPool(deadline_s=60, cpu_s=2, memory_bytes=512 << 20, preload=["math_verify"]) as pool:
        for name in names:
            tables[name] = await examine(pool, name)
    print("\n| Benchmark | Cases | Number | Not as wanted |\n|---|---|---|---|")
    for name, counts in tables.items():
        for kind, counted in sorted(counts.items()):
            print(f"| {name} | {kind} | {counted['cases']} | {counted['unwanted']} |")


if __name__ == "__main__":
    asyncio.run(main())
