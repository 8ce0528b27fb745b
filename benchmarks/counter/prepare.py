"""Writes the rows of counter: where the counter starts, a task in words, what it must show in the end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The server's tools as a model is told of them, written by `python -m nemo_gym.servers.tool_schemas`.
TOOLS = Path(__file__).with_name("tools.json")
ROWS_PER_KIND = 4

Between = Callable[[int, int], int]
Task = tuple[int, str, int]
"""Where the counter starts, what is asked, what it must show in the end."""


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``."""
    tools = json.loads(TOOLS.read_text(encoding="utf-8"))
    with output_path.open("w", encoding="utf-8") as output:
        for row in rows(tools):
            output.write(json.dumps(row, ensure_ascii=False) + "\n")
    return output_path


def rows(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every kind of task, with numbers that follow from its name."""
    made = []
    for kind, task_of in KINDS.items():
        for number in range(1, ROWS_PER_KIND + 1):
            start, task, expected = task_of(_between(f"{kind}/{number}"))
            made.append(
                {
                    "task_id": f"{kind}-{number}",
                    "kind": kind,
                    "task": task,
                    "start_value": start,
                    "expected_value": expected,
                    "responses_create_params": {"tools": tools},
                }
            )
    return made


def _between(seed: str) -> Between:
    # random() is the one function whose numbers Python promises to keep for a seed.
    source = random.Random(f"counter/{seed}")
    return lambda low, high: low + int(source.random() * (high - low + 1))


def _add(between: Between) -> Task:
    start, amount = between(-20, 60), between(2, 40)
    return start, f"Add {amount} to the counter.", start + amount


def _take_away(between: Between) -> Task:
    start, amount = between(-20, 60), between(2, 40)
    return start, f"Take {amount} away from the counter. It may go below zero.", start - amount


def _steps(between: Between) -> Task:
    start, first, second, third = between(0, 30), between(10, 20), between(2, 8), between(20, 30)
    task = f"Add {first} to the counter, then take away {second}, and then add {third}."
    return start, task, start + first - second + third


def _repeat(between: Between) -> Task:
    start, amount, times = between(0, 30), between(3, 9), between(3, 6)
    return start, f"Add {amount} to the counter, {times} times in all.", start + amount * times


def _restart(between: Between) -> Task:
    start, amount, less = between(40, 90), between(12, 30), between(2, 10)
    return start, f"Set the counter back to zero, add {amount}, then take away {less}.", amount - less


def _bring_to(between: Between) -> Task:
    start, wanted = between(0, 40), between(50, 150)
    return start, f"Make the counter show {wanted}. You do not know yet what it shows.", wanted


def _double(between: Between) -> Task:
    start = between(6, 70)
    return start, "Look at the counter, and double what it shows.", start * 2


def _negate(between: Between) -> Task:
    start = between(3, 40)
    return start, "Make the counter show the opposite number: the same one with a minus before it.", -start


def _parity(between: Between) -> Task:
    start, even, odd = between(10, 60), between(3, 9), between(11, 19)
    task = f"If the counter shows an even number, add {even}. If it shows an odd number, take away {odd}."
    return start, task, start + even if start % 2 == 0 else start - odd


def _threshold(between: Between) -> Task:
    start, limit, amount = between(5, 60), between(25, 40), between(4, 9)
    task = f"If the counter shows more than {limit}, set it back to zero; otherwise add {amount}."
    return start, task, 0 if start > limit else start + amount


def _tell(between: Between) -> Task:
    start = between(7, 80)
    return start, "Tell me what the counter shows. Leave it as it is.", start


KINDS: dict[str, Callable[[Between], Task]] = {
    "add": _add,
    "take-away": _take_away,
    "steps": _steps,
    "repeat": _repeat,
    "restart": _restart,
    "bring-to": _bring_to,
    "double": _double,
    "negate": _negate,
    "parity": _parity,
    "threshold": _threshold,
    "tell": _tell,
}
