"""Writes rows that the till and the counter can judge."""

import json
from pathlib import Path

ROWS = [
    {"task_id": "breakfast", "task": "Buy two apples and a bread.", "already_rung_up": 0, "expected_sum": 430},
    {"task_id": "evening", "task": "Buy three candles.", "already_rung_up": 1000, "expected_sum": 1375},
    {"task_id": "up", "task": "Add seven to the counter.", "start_value": 10, "expected_value": 17},
    {"task_id": "down", "task": "Take two away from the counter.", "start_value": 1, "expected_value": -1},
]


def prepare(output_path: Path, judged_by: str) -> Path:
    rows = [{**row, "responses_create_params": {}} for row in ROWS if judged_by in row]
    output_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return output_path
