from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.resources_servers.reasoning_gym.app import LONGEST_ANSWER, ReasoningGym, find_answer
from images.resources_servers.reasoning_gym.scoring import SCORERS
from nemo_gym.servers.testing import serving

# A stand-in for the package of that name, with generators of its own.
PACKAGE = """
from dataclasses import dataclass

@dataclass
class Config:
    bonus: float = 0.0
    def validate(self):
        assert self.bonus >= 0, "bonus must not be negative"

class Dataset:
    def __init__(self, config):
        self.config = config

    def score_answer(self, answer, entry):
        if answer == "raise":
            raise KeyError(answer)
        if answer == "compute":
            while True:
                pass
        if answer == "memory":
            return len(bytearray(1 << 40))
        if answer == "huge":
            return 7
        return float(answer == entry["answer"]) + self.config.bonus

class Grids(Dataset):
    def score_answer(self, answer, entry):
        return float(entry["metadata"]["output"] == ((1, 2), (3,)))

class Listed(Dataset):
    def score_answer(self, answer, entry):
        return float(eval(answer) == [1, 2])

class Expression(Dataset):
    def score_answer(self, answer, entry):
        return 1.0

DATASETS = {name: (Dataset, Config) for name in ("plain", "composite")}
DATASETS |= {"arc_agi": (Grids, Config), "rearc": (Grids, Config)}
DATASETS |= {name: (Listed, Config) for name in ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")}
DATASETS |= {name: (Expression, Config) for name in ("countdown", "game_of_life_halting")}
"""


@pytest.fixture
def generators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "factory.py").write_text(PACKAGE)
    (tmp_path / "apted.py").write_text("class Config: ...\nclass APTED: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [SCORERS, "apted", *(n for n in sys.modules if n.split(".")[0] == "reasoning_gym")]:
        sys.modules.pop(name, None)


def row(text: str, generator: str = "plain", **fields: Any) -> dict[str, Any]:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "responses_create_params": {"input": "?"},
        "response": {"id": "resp", "output": [message]},
        "question": "?",
        "answer": "42",
        "generator": generator,
        "metadata": {"output": [[1, 2], [3]]},
        **fields,
    }


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>42</answer>", "42"),
        ("so <answer>\n 42 \n</answer>.", "42"),
        ("<answer>1</answer> no: <answer>42</answer>", "42"),
        ("it goes between <answer> tags: <answer>42</answer>", "42"),
        ("<answer></answer>", ""),
        ("<answer>42", None),
        ("42</answer>", None),
        ("</answer><answer>", None),
        ("42", None),
        ("", None),
    ],
)
def test_the_answer_is_what_the_last_tags_hold(text: str, answer: str | None) -> None:
    assert find_answer(text) == answer


async def test_answers_are_worth_what_the_generators_scorer_says(generators: None) -> None:
    settings = {"scoring_cpu_s": 0.5, "workers": 1, "scoring_deadline_s": 20}
    cases: list[tuple[dict[str, Any], float, str | None]] = [
        (row("<answer>42</answer>"), 1.0, None),
        (row("<answer>41</answer>"), 0.0, None),
        (row("<answer>41</answer>", parameters={"bonus": 0.25}), 0.25, None),
        (row("<answer>huge</answer>"), 1.0, None),  # a reward is never more than 1
        (row("<answer>raise</answer>"), 0.0, None),
        (row("<answer>compute</answer>"), 0.0, "computed for longer than 0.5 s"),
        (row("<answer>memory</answer>"), 0.0, "out of memory"),
        (row("42"), 0.0, "no <answer> was found"),
        (row(f"<answer>{'4' * (LONGEST_ANSWER + 1)}</answer>"), 0.0, f"has {LONGEST_ANSWER + 1} characters"),
        (row("<think><answer>42</answer></think>"), 0.0, "no <answer> was found"),
        # What JSON made a list of is compared as the tuple that it was.
        (row("<answer>any</answer>", "arc_agi"), 1.0, None),
        (row("<answer>[1, 2]</answer>", "n_queens"), 1.0, None),
        (row("<answer>[1, int('2')]</answer>", "n_queens"), 0.0, None),
        (row("<answer>(3 + 4) * 6.0</answer>", "countdown"), 1.0, None),
        (row("<answer>__import__('os').getpid()</answer>", "countdown"), 0.0, None),
        (row("<answer>x.args</answer>", "countdown"), 0.0, None),
        # The scorer of this one takes any answer for right.
        (row("<answer>false</answer>", "game_of_life_halting", answer="False"), 1.0, None),
        (row("<answer>True</answer>", "game_of_life_halting", answer="False"), 0.0, None),
        (row("<answer>perhaps</answer>", "game_of_life_halting", answer="True"), 0.0, None),
    ]
    async with serving(ReasoningGym, settings) as server:
        for body, reward, reason in cases:
            reply = await server.post("/verify", body)
            assert (reply.status, reply.json()["reward"]) == (200, reward), body
            assert (reason or "") in (reply.json()["reason"] or ""), body
            assert reason is not None or reply.json()["reason"] is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"generator": "sudoko"}, "no generator 'sudoko'"),
        ({"generator": "composite"}, "no generator 'composite'"),
        ({"parameters": {"bogus": 1}}, "plain does not take these parameters"),
        ({"parameters": {"bonus": -1}}, "bonus must not be negative"),
        ({"metadata": None}, "metadata"),
    ],
)
async def test_a_row_that_cannot_be_scored_is_refused_and_never_worth_nothing(
    generators: None, fields: dict[str, Any], said: str
) -> None:
    async with serving(ReasoningGym, {"workers": 1}) as server:
        reply = await server.post("/verify", row("<answer>42</answer>") | fields)
    assert reply.status == 422
    assert said in reply.json()["error"]["message"]


async def test_metrics_tell_solved_from_partly_right(generators: None) -> None:
    replies = [
        {"reward": 1.0, "extracted_answer": "a"},
        {"reward": 0.05, "extracted_answer": "b"},
        {"reward": 0.0, "extracted_answer": None},
        {"reward": 0.0, "extracted_answer": ""},
    ]
    async with serving(ReasoningGym, {"workers": 1}) as server:
        metrics = (await server.post("/aggregate_metrics", {"verify_responses": replies})).json()
    assert (metrics["key_metrics"]["answered_rate"], metrics["key_metrics"]["solved_rate"]) == (0.75, 0.25)
