"""Scripts that know, or never know, the right answers of ``truthfulqa_mc1``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemo_gym.environment import PlannedBenchmark
from tests.support.scripted_endpoint import last_user_text


def prompt_of(row: dict[str, Any]) -> str:
    """The user's message of a row."""
    return last_user_text(row["responses_create_params"]["input"])


def always_right(planned: PlannedBenchmark) -> Callable[[str], str]:
    """A script that answers every task with its expected letter."""
    answers = {prompt_of(row): row["expected_answer"] for row in planned.rows}
    return lambda prompt: f"Answer: {answers[prompt]}"


def always_wrong(planned: PlannedBenchmark) -> Callable[[str], str]:
    """A script that answers every task with an option that is not the expected one."""
    answers = {
        prompt_of(row): next(o["letter"] for o in row["options"] if o["letter"] != row["expected_answer"])
        for row in planned.rows
    }
    return lambda prompt: f"Answer: {answers[prompt]}"
