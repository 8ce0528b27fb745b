"""Writes the rows of ifeval: a prompt, the instructions in it that a program can check, and their arguments."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_gym.environment.downloads import download

URL = (
    "https://raw.githubusercontent.com/google-research/google-research/master/"
    "instruction_following_eval/data/input_data.jsonl"
)
SHA256 = "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49"


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``, in the order of the source: a task's id is its position there."""
    source = download(URL, sha256=SHA256, filename="ifeval.jsonl")
    with source.open(encoding="utf-8") as lines, output_path.open("w", encoding="utf-8") as output:
        for line in lines:
            case = json.loads(line)
            row = {key: case[key] for key in ("key", "prompt", "instruction_id_list", "kwargs")}
            output.write(json.dumps(row, ensure_ascii=False) + "\n")
    return output_path
