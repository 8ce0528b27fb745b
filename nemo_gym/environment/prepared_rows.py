"""Rows for prepare scripts: JSON lines in, JSON lines out, and options in an order that a seed gives.

::

    from nemo_gym.environment.downloads import download
    from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

    def prepare(output_path: Path) -> Path:
        source = download(URL, sha256=SHA256)
        return write_rows(output_path, map(row_of, read_json_lines(source.read_bytes())))
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any


def read_json_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file, blank lines left out. ``ValueError`` names the line that is none."""
    for number, line in enumerate(content.decode("utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"line {number} is a {type(value).__name__}, and not an object")
        yield value


def write_rows(output_path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write one row a line, and return where. The same rows are the same bytes everywhere."""
    with output_path.open("w", encoding="utf-8", newline="\n") as output:
        for row in rows:
            output.write(json.dumps(row, ensure_ascii=False) + "\n")
    return output_path


def multiple_choice_row(
    *, task_id: str, question: str, choices: Sequence[str], right: int, seed: str | None
) -> dict[str, Any]:
    """The row that the resources server ``mcqa`` takes. ``right`` is the right choice's position in ``choices``.

    Without a ``seed`` the choices stand as they came. With one, their order follows from the seed and the task's id
    alone: it is the same on every machine and under every Python, and stays when other tasks come and go. Choices that
    speak of their order ("none of the above", "both A and B") keep it.
    """
    order = list(range(len(choices)))
    if seed is not None and not any(_SPEAKS_OF_ORDER.search(choice) for choice in choices):
        order.sort(key=lambda index: sha256(f"{seed}/{task_id}/{index}".encode()).digest())
    letters = string.ascii_uppercase[: len(choices)]
    options = [{"letter": letter, "text": choices[index]} for letter, index in zip(letters, order, strict=True)]
    return {
        "task_id": task_id,
        "question": question,
        "options": options,
        "options_text": "\n".join(f"{option['letter']}. {option['text']}" for option in options),
        "expected_answer": letters[order.index(right)],
    }


_LETTER = r"(?:[A-J]|\([A-Ja-j]\))"
_LETTERS = rf"(?:{_LETTER} +(?:and|or) +)?{_LETTER}(?:\s*,\s*|\s+(?:(?:and|or|&)\s+)?){_LETTER}"
_SPEAKS_OF_ORDER = re.compile(
    "|".join((
        r"(?i:\b(?:of|listed|all|as|both|the) +(?:the +)?(?:above|below|preceding|previous)\b)",
        r"(?i:\b(?:all|none|both|any|either|neither) +(?:of +)?(?:these|those|them)\b)",
        r"(?i:^(?:both|neither|either|none|all)\W*$)",
        r"(?i:\boptions? +)[A-J1-9]\b",
        rf"(?<![\w']){_LETTERS}(?![\w'])(?: +only\b| +both|\W*$)",
    ))
)  # fmt: skip
