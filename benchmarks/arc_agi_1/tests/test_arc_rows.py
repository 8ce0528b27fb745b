from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.arc_agi_1.prepare import prepare, row_of

PUZZLE = {
    "train": [{"input": [[0, 1], [2, 3]], "output": [[1, 0]]}, {"input": [[5]], "output": [[6], [7]]}],
    "test": [{"input": [[9]], "output": [[8]]}],
}


def test_a_row_shows_examples_and_test_inputs_and_keeps_the_outputs_apart() -> None:
    assert row_of("ab12", PUZZLE) == {
        "task_id": "ab12",
        "examples": (
            "Example 1, input:\n[[0,1],\n [2,3]]\n\nExample 1, output:\n[[1,0]]\n\n"
            "Example 2, input:\n[[5]]\n\nExample 2, output:\n[[6],\n [7]]"
        ),
        "tests": "Test, input:\n[[9]]",
        "wanted": "the output grid",
        "expected_grids": [[[8]]],
    }


def test_several_tests_are_numbered_and_answered_in_order() -> None:
    row = row_of("x", {**PUZZLE, "test": [*PUZZLE["test"], {"input": [[4]], "output": [[3]]}]})
    assert row["tests"] == "Test 1, input:\n[[9]]\n\nTest 2, input:\n[[4]]"
    assert row["wanted"] == "the 2 output grids, in the order of the tests"
    assert row["expected_grids"] == [[[8]], [[3]]]


def test_an_unknown_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needed: a version, arc_agi_1 or arc_agi_2; found 'arc_agi_3'"):
        prepare(tmp_path / "rows.jsonl", "arc_agi_3")
    assert not list(tmp_path.iterdir())
