"""Writes the rows of workplace: the tasks, each with the tools that a model has for it."""

from __future__ import annotations

import json
from pathlib import Path

TASKS = Path(__file__).with_name("tasks.json")
# The server's tools as a model is told of them, written by `python -m nemo_gym.servers.tool_schemas`.
TOOLS = Path(__file__).with_name("tools.json")


def prepare(output_path: Path) -> Path:
    """Write the rows to ``output_path``."""
    tools = json.loads(TOOLS.read_text(encoding="utf-8"))
    with output_path.open("w", encoding="utf-8") as output:
        for task in json.loads(TASKS.read_text(encoding="utf-8")):
            row = {**task, "responses_create_params": {"tools": tools}}
            output.write(json.dumps(row, ensure_ascii=False) + "\n")
    return output_path
