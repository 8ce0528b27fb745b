from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from images.resources_servers.instruction_following.app import InstructionFollowing
from nemo_gym.servers.testing import Running, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_COMMA = "punctuation:no_comma"
NUMBERS = "count:numbers"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running[InstructionFollowing]]:
    async with serving(InstructionFollowing, {"workers": 2}) as running:
        yield running


def row(text: str, *instructions: tuple[str, dict[str, Any] | None], **fields: Any) -> dict[str, Any]:
    """A row, and a response to it that says ``text`` after some reasoning that would follow."""
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "12"}]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "responses_create_params": {"input": "Say."},
        "response": {"id": "resp", "output": [reasoning, message]},
        "instruction_id_list": [name for name, _ in instructions],
        "kwargs": [arguments for _, arguments in instructions],
        "_ng_task_index": 7,
        "anything": {"else": [1, None]},
        **fields,
    }


async def test_a_reply_is_the_row_with_its_verdicts(server: Running[InstructionFollowing]) -> None:
    sent = row("Sure, here:\n1 2", (NUMBERS, {"N": 2.0, "keyword": None}), (NO_COMMA, None))
    reply = await server.post("/verify", sent)
    assert reply.status == 200
    assert reply.json() == {
        **sent,
        "reward": 0.0,
        "loose": 1.0,
        "followed": [
            {"instruction_id": NUMBERS, "strict": True, "loose": True},
            {"instruction_id": NO_COMMA, "strict": False, "loose": True},
        ],
        "unjudged": None,
    }


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("1", 1.0),
        ("none", 0.0),
        ("", 0.0),
        ("<think>1</think>", 0.0),
        ("<think>1 2</think>\n\n1", 1.0),
        ("<think>1", 0.0),
        ("1 " + "x" * 1_000_000, 1.0),
        ("\u0000 1 \U0010ffff", 1.0),
    ],
)
async def test_rewards(server: Running[InstructionFollowing], text: str, reward: float) -> None:
    reply = await server.post("/verify", row(text, (NUMBERS, {"N": 1})))
    assert reply.json()["reward"] == reward


async def test_line_breaks_behind_a_thinking_block_start_no_paragraph(server: Running[InstructionFollowing]) -> None:
    first = {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "so"}
    sent = row("<think>Hm.</think>\n\nSo.", ("length_constraints:nth_paragraph_first_word", first))
    assert (await server.post("/verify", sent)).json()["reward"] == 1.0


@pytest.mark.parametrize("field", ["instruction_id_list", "kwargs", "response", "responses_create_params"])
async def test_a_row_that_lacks_a_field_is_refused_by_name(server: Running[InstructionFollowing], field: str) -> None:
    body = row("1", (NUMBERS, {"N": 1}))
    del body[field]
    reply = await server.post("/verify", body)
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", field]
    assert "reward" not in reply.json()


@pytest.mark.parametrize(
    ("fields", "loc", "words"),
    [
        ({"instruction_id_list": ["count:number"]}, ["instruction_id_list", "0"], "nearest: count:numbers"),
        ({"instruction_id_list": []}, ["instruction_id_list"], "at least 1 item"),
        ({"kwargs": []}, ["kwargs"], "needed: one for each of 1; found 0"),
        ({"kwargs": [{"N": "many"}]}, ["kwargs", "0", "N"], "count:numbers takes N"),
        ({"kwargs": [{}]}, ["kwargs", "0", "N"], "Field required"),
        ({"kwargs": [3]}, ["kwargs", 0], "dictionary"),
    ],
)
async def test_an_instruction_that_cannot_be_checked_is_refused(
    server: Running[InstructionFollowing], fields: dict[str, Any], loc: list[Any], words: str
) -> None:
    reply = await server.post("/verify", row("1", (NUMBERS, {"N": 1}), **fields))
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", *loc]
    assert words in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "instruction", [(NUMBERS, {"N": 1}), ("language:response_language", {"language": "en"})], ids=["count", "language"]
)
async def test_an_answer_with_half_a_character_is_judged(
    server: Running[InstructionFollowing], instruction: tuple[str, dict[str, Any]]
) -> None:
    text = "This is a sentence in English, with one number: 1 and a half character \ud83d in it."
    reply = await server.post("/verify", json.dumps(row(text, instruction)).encode())
    assert (reply.status, reply.json()["reward"]) == (200, 1.0)


async def test_a_thousand_answers_at_a_time_are_all_judged(server: Running[InstructionFollowing]) -> None:
    text = "A word, and one more. " * 200
    rows = [row(f"{text}{number}", ("words:repeats", {"small_n": 200}), (NUMBERS, {"N": 1})) for number in range(1000)]
    replies = await asyncio.gather(*(server.post("/verify", sent) for sent in rows))
    assert {reply.status for reply in replies} == {200}
    assert [reply.json()["reward"] for reply in replies] == [1.0] * 1000


async def test_an_answer_that_takes_too_long_follows_nothing_and_holds_nobody_up() -> None:
    long = row("a b " * 2_000_000, ("count:unique_word_count", {"N": 2}))
    async with serving(InstructionFollowing, {"workers": 1, "cpu_s": 0.05}) as server:
        waiting = asyncio.create_task(server.post("/verify", long))
        await asyncio.sleep(0)
        assert (await server.get("/")).status == 200
        assert not waiting.done()
        reply = (await waiting).json()
        after = (await server.post("/verify", row("a b", ("count:unique_word_count", {"N": 2})))).json()
    assert (reply["reward"], reply["loose"]) == (0.0, 0.0)
    assert reply["followed"] == [{"instruction_id": "count:unique_word_count", "strict": False, "loose": False}]
    assert reply["unjudged"] == "it computed for longer than 0.05 s"
    assert after["reward"] == 1.0


async def test_metrics(server: Running[InstructionFollowing]) -> None:
    rows = [
        row("1", (NUMBERS, {"N": 1}), (NO_COMMA, {}), _ng_task_index=0),
        row("1, 2", (NUMBERS, {"N": 1}), (NO_COMMA, {}), _ng_task_index=0),
        row("1\n,", (NO_COMMA, {}), _ng_task_index=1),
    ]
    replies = [(await server.post("/verify", sent)).json() for sent in rows]
    metrics = (await server.post("/aggregate_metrics", {"verify_responses": replies})).json()
    empty = (await server.post("/aggregate_metrics", {"verify_responses": []})).json()
    accuracies = {
        "prompt_level_strict_accuracy": 1 / 3,
        "instruction_level_strict_accuracy": 2 / 5,
        "prompt_level_loose_accuracy": 2 / 3,
        "instruction_level_loose_accuracy": 3 / 5,
    }
    for name, value in accuracies.items():
        assert metrics["key_metrics"][name] == metrics["agent_metrics"][name] == pytest.approx(value)
    assert metrics["key_metrics"]["mean/reward"] == pytest.approx(1 / 3)
    assert metrics["agent_metrics"]["unjudged"] == 0
    assert metrics["agent_metrics"]["accuracy_by_instruction"] == {
        NUMBERS: {"count": 2, "strict": 0.5, "loose": 0.5},
        NO_COMMA: {"count": 3, "strict": pytest.approx(1 / 3), "loose": pytest.approx(2 / 3)},
    }
    assert [group["mean/reward"] for group in metrics["group_level_metrics"]] == [0.5, 0.0]
    assert empty == {"group_level_metrics": [], "agent_metrics": {"count": 0, "tasks": 0}, "key_metrics": {}}


async def test_replies_without_verdicts_have_no_accuracy() -> None:
    async with serving(InstructionFollowing, {"workers": 1}, config={"skip_verification": True}) as server:
        reply = (await server.post("/verify", row("1", (NUMBERS, {"N": 1})))).json()
        metrics = (await server.post("/aggregate_metrics", {"verify_responses": [reply]})).json()
    assert reply["verification_skipped"] is True
    assert "prompt_level_strict_accuracy" not in metrics["key_metrics"]


async def test_it_says_that_verification_needs_no_session(server: Running[InstructionFollowing]) -> None:
    assert (await server.get("/reverify_mode")).json() == "stateless"
