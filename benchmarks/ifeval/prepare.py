"""Writes the rows of ifeval: a prompt, the instructions in it that a program can check, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.environment.downloads import download
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

URL = (
    "https://raw.githubusercontent.com/google-research/google-research/master/"
    "instruction_following_eval/data/input_data.jsonl"
)
SHA256 = "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``, in the order of the source: a task's id is its position there."""
    source = download(URL, sha256=SHA256, filename="ifeval.jsonl")
    return write_rows(output_path, map(row_of, read_json_lines(source.read_bytes())))


def row_of(case: dict[str, Any]) -> dict[str, Any]:
    """The row of one case. Its key is a name, and written as one: numbers of a row are averaged in metrics."""
    return {"key": str(case["key"]), **{field: case[field] for field in ("prompt", "instruction_id_list", "kwargs")}}
