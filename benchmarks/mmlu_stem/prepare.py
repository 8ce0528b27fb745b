"""Writes the rows of mmlu_stem: an exam question, its subject, its four options, the right letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import download
from nemo_gym.environment.prepared_rows import multiple_choice_row, read_json_lines, write_rows

URL = "https://raw.githubusercontent.com/QwenLM/Qwen2.5-Math/main/evaluation/data/mmlu_stem/test.jsonl"
SHA256 = "fd7c16f96067d285638abb5aaef9cd8a063b11454e14cb64df93141a58691478"


def prepare(output_path: Path, seed: str | None = None) -> Path:
    """Write the rows to ``output_path``, the options in the order of the source, or in one that ``seed`` gives."""
    source = download(URL, sha256=SHA256, filename="mmlu_stem_test.jsonl")
    return write_rows(output_path, rows_of(read_json_lines(source.read_bytes()), seed))


def rows_of(cases: Iterable[dict[str, Any]], seed: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of the cases. A task's id is its subject and its position among that subject's questions."""
    seen: Counter[str] = Counter()
    for case in cases:
        subject = case["type"]
        row = multiple_choice_row(
            task_id=f"{subject}-{seen[subject]:03}",
            question=case["question"],
            choices=case["choices"],
            right=case["answer"],
            seed=seed,
        )
        seen[subject] += 1
        yield {**row, "subject": subject}
