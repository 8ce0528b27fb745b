"""The image of instruction_following has its libraries and their data for English, and answers are judged by them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner, plan_benchmark, serve_benchmark
from tests.support.made_benchmark import asks, make_benchmark
from tests.support.scripted_endpoint import ScriptedEndpoint

NAME = "checked"
FOUR = "Dr. Smith of the U.S. Army met Mr. J. Doe at 5 p.m. on Tuesday. They spoke of tea. Really? Yes!"
ENGLISH = "this is a sentence that is written in english, and so is the rest of it."

# What only the real data tell: (instruction, its arguments, an answer that follows, one that does not).
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("length_constraints:number_sentences", {"num_sentences": 5, "relation": "less than"}, FOUR, f"{FOUR} Indeed."),
    ("length_constraints:number_sentences", {"num_sentences": 4, "relation": "at least"}, FOUR, FOUR[:-5]),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, FOUR, "Dr. Smith"),
    ("words:start_verb", {}, "Consider this.", "Cats run."),
    ("ratio:stop_words", {"percentage": 50}, "Between us lies water", "Between you and the sea"),
    ("change_case:english_lowercase", {}, ENGLISH, "dies ist ein satz auf deutsch, und der rest davon auch."),
    ("language:response_language", {"language": "de"}, "Dies ist ein Satz auf Deutsch, und das auch.", ENGLISH),
    ("words:odd_even_syllables", {}, "cat paper dog", "cat dog"),
    ("format:emoji", {}, "Hello. 😀 Goodbye 🦜", "Hello. Goodbye 😀"),
]
# The answers to rows, by what these ask: the number of the case, and the reward.
ANSWERS = {
    f"{number} {reward}": answer
    for number, (_, _, follows, does_not) in enumerate(CASES)
    for reward, answer in enumerate((does_not, follows))
}
CONFIG = {"config_paths": ["images/resources_servers/instruction_following/config.yaml"]}
AGENT = {
    "resources_server": {"type": "resources_servers", "name": "instruction_following"},
    "model_server": {"type": "responses_api_models", "name": "policy_model"},
}


async def rewards_of(planned: PlannedBenchmark, registry_server: BaseServerConfig) -> dict[str, list[float]]:
    async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
        results = await asyncio.gather(*(runner.run_task(task_id) for task_id in planned.task_ids()))
    return {result.task_id: result.rewards for result in results}


def test_answers_are_judged_by_the_data_in_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        asks(task, task_id=task, instruction_id_list=[CASES[int(task[0])][0]], kwargs=[CASES[int(task[0])][1]])
        for task in ANSWERS
    ]
    make_benchmark(tmp_path, NAME, rows=rows, config=CONFIG)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    agent = {f"{NAME}_agent": {"responses_api_agents": {"simple_agent": AGENT}}}
    planned = plan_benchmark(NAME, overrides=agent)
    with (
        ScriptedEndpoint(ANSWERS.__getitem__) as endpoint,
        serve_benchmark(NAME, overrides=endpoint.overrides(**agent)) as registry_server,
    ):
        rewards = asyncio.run(rewards_of(planned, registry_server))
    assert len(rewards) == 2 * len(CASES)
    assert rewards == {task: [float(task[-1])] for task in ANSWERS}
