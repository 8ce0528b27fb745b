"""Writes the rows of gsm8k: a word problem, its answer as a number, and the worked solution it was taken from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from nemo_gym.environment.downloads import download
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

URL = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/test.jsonl"
SHA256 = "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"
ANSWER_MARK = "####"


class Correction(NamedTuple):
    """An answer of the source that is wrong, the right one, the arithmetic that gives it, and what went wrong."""

    wrong: str
    right: str
    arithmetic: str
    reason: str


# By position in the source. Only what the question itself settles: no other reading of it gives the source's answer.
CORRECTIONS: Final[dict[int, Correction]] = {
    454: Correction(
        "150",
        "240",
        "(4 + 4) * 30",
        "Each of the two eats 4 apples a day; the solution lets the second one eat 1.",
    ),
    952: Correction(
        "360",
        "1800",
        "30 * (60 // 15) * (23 - 8)",
        "From 8 in the morning to 11 at night it is 15 hours; the solution stops at 11 in the morning.",
    ),
    1309: Correction(
        "2280",
        "2180",
        "(430 + 320) + 430 + (300 + 400) + 300",
        "Sarah raised 300 dollars; the solution's sum has 400 for her, which is what Maryam raised beyond that.",
    ),
}


def prepare(output_path: Path, corrected: bool = False) -> Path:
    """Write the rows to ``output_path``, in the order of the source: a task's id is its position there.

    With ``corrected``, the answers in ``CORRECTIONS`` take the place of the source's.
    """
    source = download(URL, sha256=SHA256, filename="gsm8k_test.jsonl")
    rows = map(row_of, read_json_lines(source.read_bytes()))
    return write_rows(output_path, corrected_rows(rows) if corrected else rows)


def row_of(case: dict[str, str]) -> dict[str, str]:
    """The row of one case; the source gives the answer at the end of the solution, in part as ``1,450,000``."""
    solution, mark, answer = case["answer"].rpartition(ANSWER_MARK)
    if not mark:
        raise ValueError(f"no {ANSWER_MARK} in the answer to {case['question'][:60]!r}")
    return {
        "question": case["question"],
        "expected_answer": answer.strip().replace(",", ""),
        "solution": solution.strip(),
    }


def corrected_rows(rows: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    """The rows with right answers in place of wrong ones, and beside each why: ``correction``."""
    for position, row in enumerate(rows):
        correction = CORRECTIONS.get(position)
        if correction is None:
            yield row
            continue
        if row["expected_answer"] != correction.wrong:
            raise ValueError(f"row {position} has the answer {row['expected_answer']}, and not {correction.wrong}")
        yield {**row, "expected_answer": correction.right, "correction": correction.reason}
