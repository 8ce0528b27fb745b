from __future__ import annotations

from typing import Any

import pytest

from images.resources_servers.mcqa.app import Mcqa
from nemo_gym.errors import ConfigError
from nemo_gym.servers.testing import bootstrap_for, serving


def row(text: str, **fields: Any) -> dict[str, Any]:
    """A row, and a response to it that says ``text`` after some reasoning about another answer."""
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Answer: A"}]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "responses_create_params": {"input": "Which?"},
        "response": {"id": "resp", "output": [reasoning, message]},
        "question": "Which?",
        "options": [{"letter": "A", "text": "London"}, {"letter": "B", "text": "Paris"}],
        "expected_answer": "B",
        "_ng_task_index": 7,
        "anything": {"else": [1, None]},
        **fields,
    }


async def test_a_reply_is_the_row_with_reward_and_what_explains_it() -> None:
    async with serving(Mcqa) as mcqa:
        sent = row("The answer is (B).")
        reply = await mcqa.post("/verify", sent)
    assert reply.status == 200
    assert reply.json() == {**sent, "reward": 1.0, "extracted_answer": "B", "answer_format": "answer"}


@pytest.mark.parametrize("text", ["Answer: A", "", "<think>Answer: B</think> I cannot tell", "<think>Answer: B"])
async def test_wrong_missing_and_merely_thought_answers_score_nothing(text: str) -> None:
    async with serving(Mcqa) as mcqa:
        reply = (await mcqa.post("/verify", row(text))).json()
    assert reply["reward"] == 0.0
    assert reply["extracted_answer"] == ("A" if text == "Answer: A" else None)


async def test_an_expected_letter_in_lower_case_is_meant_as_the_option() -> None:
    async with serving(Mcqa) as mcqa:
        assert (await mcqa.post("/verify", row("Answer: b", expected_answer=" b"))).json()["reward"] == 1.0


@pytest.mark.parametrize("field", ["options", "expected_answer", "question", "response", "responses_create_params"])
async def test_a_row_that_lacks_a_field_is_refused_by_name_and_never_scored(field: str) -> None:
    body = row("Answer: B")
    del body[field]
    async with serving(Mcqa) as mcqa:
        reply = await mcqa.post("/verify", body)
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", field]
    assert field in reply.json()["error"]["message"]
    assert "reward" not in reply.json()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"expected_answer": "C"}, "expected_answer"),
        ({"options": []}, "options"),
        ({"options": [{"letter": "A", "text": "x"}, {"letter": "a", "text": "y"}]}, "options"),
        ({"options": [{"letter": "A"}]}, "options.0.text"),
        ({"answer_regex": "(["}, "answer_regex"),
        ({"response": {"id": "no output"}}, "response"),
    ],
)
async def test_a_row_that_cannot_be_judged_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    async with serving(Mcqa) as mcqa:
        reply = await mcqa.post("/verify", row("Answer: B", **fields))
    assert reply.status == 422
    assert ".".join(map(str, reply.json()["detail"][0]["loc"])) == f"body.{named}"


async def test_the_forms_and_the_regex_are_settings_and_a_row_may_bring_its_own_regex() -> None:
    async with serving(Mcqa, {"answer_formats": ["boxed"]}) as mcqa:
        assert (await mcqa.post("/verify", row("Answer: B"))).json()["reward"] == 0.0
        assert (await mcqa.post("/verify", row("\\boxed{B}"))).json()["reward"] == 1.0
    async with serving(Mcqa, {"answer_regex": r"choose=(\w)"}) as mcqa:
        reply = (await mcqa.post("/verify", row("\\boxed{A} choose=B"))).json()
        assert (reply["reward"], reply["answer_format"]) == (1.0, "regex")
        assert (await mcqa.post("/verify", row("take B now", answer_regex=r"take (\w)"))).json()["reward"] == 1.0


@pytest.mark.parametrize(
    "settings", [{"answer_formats": ["boxt"]}, {"answer_regex": "(["}, {"answer_formats": "boxed"}]
)
def test_settings_that_cannot_be_used_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Mcqa(bootstrap_for(Mcqa, settings))


async def test_metrics_have_mean_reward_answered_rate_and_what_was_answered_instead() -> None:
    async with serving(Mcqa) as mcqa:
        texts = ["Answer: B", "Answer: A", "nothing", "\\boxed{B}"]
        rows = [row(text, _ng_task_index=position // 2) for position, text in enumerate(texts)]
        replies = [(await mcqa.post("/verify", sent)).json() for sent in rows]
        metrics = (await mcqa.post("/aggregate_metrics", {"verify_responses": replies})).json()
        empty = (await mcqa.post("/aggregate_metrics", {"verify_responses": []})).json()
    assert metrics["key_metrics"] == {"mean/reward": 0.5, "answered_rate": 0.75}
    assert metrics["agent_metrics"]["answer_formats"] == {"answer": 2, "boxed": 1, "none": 1}
    assert metrics["agent_metrics"]["answers_by_expected"] == {"B": {"A": 1, "B": 2, "none": 1}}
    assert [group["mean/reward"] for group in metrics["group_level_metrics"]] == [0.5, 0.5]
    assert empty == {"group_level_metrics": [], "agent_metrics": {"count": 0, "tasks": 0}, "key_metrics": {}}


async def test_it_says_that_verification_needs_no_session() -> None:
    async with serving(Mcqa) as mcqa:
        reply = await mcqa.get("/reverify_mode")
        seeded = await mcqa.post("/seed_session", row("x"))
    assert reply.json() == "stateless"
    assert seeded.status == 200
    assert "Set-Cookie" not in seeded.headers
