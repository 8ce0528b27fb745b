"""The server: what it answers, what it refuses, and that no answer holds it up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from images.resources_servers.math_answer.app import MathAnswer
from nemo_gym.errors import ConfigError
from nemo_gym.servers.testing import Running, bootstrap_for, serving, start_worker_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Wide enough for a comparison on a busy machine, and little enough to wait for.
SETTINGS = {"comparison_cpu_s": 0.5, "workers": 2}

EXPLODING = [
    "\\boxed{9^{9^{9^9}}}",
    "\\boxed{(9^9^9)!}",
    "\\boxed{1000000000!}",
    "\\boxed{" + "\\sqrt{1+" * 100 + "x" + "}" * 100 + "}",
    "\\boxed{" + "(" * 900 + "1" + ")" * 900 + "}",
    "\\boxed{\\sum_{n=1}^{10^{12}} \\frac{1}{n!}}",
    "\\boxed{\\int_0^1 \\sin(\\sin(\\sin(x^x))) dx}",
    "\\boxed{\\binom{10^{30}}{10^{20}}}",
    "\\boxed{(1+x)^{(1+y)^{50000}} + \\log(" + "9" * 1500 + "!)}",
]


def row(text: str, **fields: Any) -> dict[str, Any]:
    """A row, and a response to it that says ``text`` after some reasoning about the right answer."""
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "It is \\boxed{42}."}]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "responses_create_params": {"input": "How many?"},
        "response": {"id": "resp", "output": [reasoning, message]},
        "question": "How many?",
        "expected_answer": "42",
        "_ng_task_index": 7,
        "anything": {"else": [1, None]},
        **fields,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def math_answer() -> AsyncIterator[Running[MathAnswer]]:
    start_worker_server("math_verify", "images.resources_servers.math_answer.app")
    async with serving(MathAnswer, SETTINGS) as running:
        yield running


async def verified(running: Running[MathAnswer], text: str, **fields: Any) -> dict[str, Any]:
    reply = await running.post("/verify", row(text, **fields))
    assert reply.status == 200
    return dict(reply.json())


async def test_a_reply_is_the_row_with_reward_and_what_explains_it(math_answer: Running[MathAnswer]) -> None:
    sent = row("7 * 6 is \\boxed{42}.")
    reply = (await math_answer.post("/verify", sent)).json()
    assert reply == {**sent, "reward": 1.0, "extracted_answer": "42", "answer_form": "boxed", "reason": None}


@pytest.mark.parametrize(
    ("text", "fields", "reward", "answer", "form"),
    [
        ("The answer is 42.", {}, 1.0, "42", "stated"),
        ("7 * 6 = 42\n#### 42", {}, 1.0, "42", "hashes"),
        ("So it is 42", {}, 1.0, "42", "last"),
        ("First \\boxed{41}, no: \\boxed{42}", {}, 1.0, "42", "boxed"),
        ("First \\boxed{42}, no: \\boxed{41}", {}, 0.0, "41", "boxed"),
        ("The answer is 42. Or \\boxed{43}.", {}, 0.0, "43", "boxed"),
        ("\\boxed{\\frac{126}{3}}", {}, 1.0, "\\frac{126}{3}", "boxed"),
        ("x=\\boxed{1} or x=\\boxed{2}", {"expected_answer": "2, 1", "is_multiple_answer": True}, 1.0, "1, 2", "boxed"),
        ("\\boxed{4.25}", {"expected_answer": "4.2", "tolerance": 0.1}, 1.0, "4.25", "boxed"),
        ("\\boxed{42 \\text{ miles}}", {"unit": "km"}, 0.0, "42 \\text{ miles}", "boxed"),
        ("\\boxed{42\ud800}".encode("utf-8", "replace").decode(), {}, 0.0, "42?", "boxed"),
    ],
)
async def test_answers_are_found_and_compared(
    math_answer: Running[MathAnswer], text: str, fields: dict[str, Any], reward: float, answer: str, form: str
) -> None:
    reply = await verified(math_answer, text, **fields)
    assert (reply["reward"], reply["extracted_answer"], reply["answer_form"]) == (reward, answer, form)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "I cannot say.",
        "<think>\\boxed{42}</think> Hm.",
        "<think>\\boxed{42}",
        "\\boxed{42",
        "\\boxed{}",
        "\ufffd",
    ],
)
async def test_no_answer_scores_nothing_and_says_so(math_answer: Running[MathAnswer], text: str) -> None:
    reply = await verified(math_answer, text)
    assert (reply["reward"], reply["extracted_answer"], reply["reason"]) == (0.0, None, "no answer was found")


@pytest.mark.parametrize(
    ("text", "reward"), [("6 * 7 = 42", 0.0), ("\\boxed{42} and", 1.0), ("The answer is 42. And", 1.0)]
)
async def test_a_response_that_was_cut_off_ends_in_no_answer(
    math_answer: Running[MathAnswer], text: str, reward: float
) -> None:
    cut = row(text)
    cut["response"]["status"] = "incomplete"
    reply = (await math_answer.post("/verify", cut)).json()
    assert reply["reward"] == reward
    assert (reply["reason"] == "no answer was found") is (reward == 0.0)


async def test_half_a_surrogate_pair_is_read_past(
    math_answer: Running[MathAnswer],
) -> None:
    body = (
        b'{"responses_create_params": {"input": "?"}, "question": "?", "expected_answer": "42", "response": {"output": '
    )
    body += b'[{"type": "message", "content": [{"type": "output_text", "text": "\\ud83d \\\\boxed{42}"}]}]}}'
    reply = await math_answer.post("/verify", body)
    assert (reply.status, reply.json()["reward"]) == (200, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000 + "\\boxed{42}",
        "\\boxed{" * 150_000 + "\\boxed{42}",
        "The answer is unclear. " * 45_000 + "\\boxed{42}",
        "$5 + $6 = 11. " * 70_000 + "\n#### 42",
        "1" * 1_000_000 + "\nThe answer is 42.",
    ],
    ids=["words", "boxes", "answers", "money", "digits"],
)
async def test_a_megabyte_takes_no_long_time(math_answer: Running[MathAnswer], text: str) -> None:
    began = time.monotonic()
    reply = await verified(math_answer, text)
    assert reply["reward"] == 1.0
    assert time.monotonic() - began < 30


async def test_an_answer_of_a_megabyte_is_none(math_answer: Running[MathAnswer]) -> None:
    reply = await verified(math_answer, f"The answer is {'1' * 1_000_000}")
    assert reply["reward"] == 0.0


@pytest.mark.parametrize("text", EXPLODING, ids=range(len(EXPLODING)))
async def test_what_explodes_is_wrong_and_holds_nothing_up(math_answer: Running[MathAnswer], text: str) -> None:
    began = time.monotonic()
    reply = await verified(math_answer, text, expected_answer="$x^2 + 1$")
    assert reply["reward"] == 0.0
    assert time.monotonic() - began < 20
    assert (await verified(math_answer, "\\boxed{42}"))["reward"] == 1.0


async def test_many_at_once_that_explode_all_get_an_answer(math_answer: Running[MathAnswer]) -> None:
    async with serving(MathAnswer, {"comparison_cpu_s": 0.1, "workers": 2}) as running:
        bad = [verified(running, EXPLODING[0]) for _ in range(8)]
        good = [verified(running, "\\boxed{42}") for _ in range(100)]
        *replies, last = await asyncio.gather(*bad, *good, verified(running, "\\boxed{42}"))
    late = [reply for reply in replies[:8] if "computed for longer than 0.1 s" in reply["reason"]]
    assert len(late) == 8
    assert {reply["reward"] for reply in replies[8:]} == {1.0}
    assert last["reward"] == 1.0


@pytest.mark.parametrize("field", ["question", "expected_answer", "response", "responses_create_params"])
async def test_a_row_without_a_field_is_refused_by_name(math_answer: Running[MathAnswer], field: str) -> None:
    sent = row("\\boxed{42}")
    del sent[field]
    reply = await math_answer.post("/verify", sent)
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", field]
    assert "reward" not in reply.json()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"expected_answer": ""}, "expected_answer"),
        ({"expected_answer": "  "}, "expected_answer"),
        ({"expected_answer": 42}, "expected_answer"),
        ({"expected_answer": "1" * 3000}, "expected_answer"),
        ({"tolerance": -1}, "tolerance"),
        ({"tolerance": "much"}, "tolerance"),
        ({"is_multiple_answer": "perhaps"}, "is_multiple_answer"),
    ],
)
async def test_a_row_that_cannot_be_judged_is_refused_by_name(
    math_answer: Running[MathAnswer], fields: dict[str, Any], named: str
) -> None:
    reply = await math_answer.post("/verify", row("\\boxed{42}", **fields))
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", named]


@pytest.mark.parametrize(
    "settings", [{"answer_forms": ["boxt"]}, {"comparison_cpu_s": 0}, {"worker_memory_mib": 1}, {"workers": 0}]
)
async def test_settings_that_cannot_be_used_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        MathAnswer(bootstrap_for(MathAnswer, settings))


async def test_the_forms_are_a_setting(math_answer: Running[MathAnswer]) -> None:
    async with serving(MathAnswer, {**SETTINGS, "answer_forms": ["boxed"]}) as running:
        assert (await verified(running, "The answer is 42."))["reason"] == "no answer was found"
        assert (await verified(running, "\\boxed{42}"))["reward"] == 1.0


async def test_metrics_tell_how_many_answered_and_how_many_could_not_be_compared(
    math_answer: Running[MathAnswer],
) -> None:
    replies = [await verified(math_answer, text) for text in ("\\boxed{42}", "\\boxed{41}", "", EXPLODING[0])]
    metrics = (await math_answer.post("/aggregate_metrics", {"verify_responses": replies})).json()
    empty = (await math_answer.post("/aggregate_metrics", {"verify_responses": []})).json()
    assert metrics["key_metrics"] == {"mean/reward": 0.25, "answered_rate": 0.75}
    assert metrics["agent_metrics"]["incomparable_rate"] == 0.25
    assert empty["key_metrics"] == {}
