from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.resources_servers.reasoning_gym.app import LONGEST_ANSWER, ReasoningGym, find_answer
from images.resources_servers.reasoning_gym.scoring import SCORERS
from images.resources_servers.reasoning_gym.solutions import solves, value_of
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
ANYTHING_GOES = "countdown game_of_life_halting puzzle24 coin_flip simple_integration polynomial_multiplication"
DATASETS |= {name: (Expression, Config) for name in ANYTHING_GOES.split()}
"""
INTEGRAL, PRODUCT = "simple_integration", "polynomial_multiplication"


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
        (row("<answer>(3 + 4) * 6</answer>", "countdown", metadata={"numbers": [3, 4, 6], "target": 42}), 1.0, None),
        (row("<answer>__import__('os').getpid()</answer>", "countdown"), 0.0, None),
        (row("<answer>x.args</answer>", "countdown"), 0.0, None),
        # Only functions of mathematics may be named: sympy is not to solve what is asked.
        (row("<answer>x**2 + 2*sqrt(x) - cos (3*x)/3 + log(x)*(x + 1) + C</answer>", INTEGRAL), 1.0, None),
        (row("<answer>integrate(2*x, x)</answer>", INTEGRAL), 0.0, None),
        (row("<answer>x**2 + Integral (3, x)</answer>", INTEGRAL), 0.0, None),
        (row("<answer>(integrate)(2*x, x)</answer>", INTEGRAL), 0.0, None),
        (row("<answer>x**2 + 3*(x) + 2</answer>", PRODUCT), 1.0, None),
        (row("<answer>expand((x+1)*(x+2))</answer>", PRODUCT), 0.0, None),
        (row("<answer>sqrt(x**4) + 3*x + 2</answer>", PRODUCT), 0.0, None),
        # What a scorer takes for right without looking at the puzzle.
        (row("<answer>6*4*1*1</answer>", "puzzle24", metadata={"numbers": [3, 7, 9, 10]}), 0.0, None),
        (row("<answer>0</answer>", "coin_flip", answer="0.1875"), 0.0, None),
        (row("<answer>3/16</answer>", "coin_flip", answer="0.1875"), 1.0, None),
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


MAKE_24 = {"metadata": {"numbers": [3, 8, 3, 8]}}
MAKE_507 = {"metadata": {"numbers": [7, 10, 50], "target": 507}}


@pytest.mark.parametrize(
    ("generator", "entry", "right", "wrong"),
    [
        ("puzzle24", MAKE_24, "8/(3 - 8/3)", "6*4*1*1"),
        ("puzzle24", {"metadata": {"numbers": [7, 2, 7, 1]}}, "(7*7 - 1) / 2", "7*7/2*1"),
        ("puzzle24", {"metadata": {"numbers": [2, 4, 10, 1]}}, "10*2 + 4 * 1", "2.4*10*1"),
        ("puzzle24", MAKE_24, "8/(3 - 8/3)", "8*3"),
        ("puzzle24", MAKE_24, "8 / (3 - 8 / 3)", "8*3 + 8/3"),
        ("countdown", MAKE_507, "10*50 + 7", "507"),
        ("countdown", MAKE_507, "-(-10*50) - -7", "10*50 - 7"),
        ("coin_flip", {"answer": "0.109375"}, "7/64", "0.1"),
        ("complex_arithmetic", {"answer": "-7.0 + 1.0i"}, "-7 + i", "nan"),
        ("number_sorting", {"answer": "['1', '2']"}, '["1", "2"]', "[NaN, NaN]"),
        ("calendar_arithmetic", {"answer": "-1"}, "-1", "12"),
        ("calendar_arithmetic", {"answer": "Monday"}, "Monday", "Sunday"),
        ("polynomial_equations", {"answer": ""}, "''", "I do not know"),
        ("game_of_life_halting", {"answer": "False"}, "false", "True"),
    ],
)
def test_a_full_score_takes_a_solution(generator: str, entry: dict[str, Any], right: str, wrong: str) -> None:
    assert solves(generator, right, entry)
    assert not solves(generator, wrong, entry)


def test_what_other_generators_scorers_take_is_taken() -> None:
    assert solves("chain_sum", "anything", {"answer": "42", "metadata": {}})


@pytest.mark.parametrize("text", ["", "1.5", "2**3", "7//2", "x", "1 2", "(1", "int(1)", "1/0", "-" * 5000 + "1"])
def test_what_is_no_arithmetic_has_no_value(text: str) -> None:
    with pytest.raises((ValueError, ArithmeticError, SyntaxError, RecursionError, MemoryError)):
        value_of(text)


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
