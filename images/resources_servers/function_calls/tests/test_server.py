"""The server: what it answers, what it refuses, and what it makes of many answers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import orjson
import pytest

from images.resources_servers.function_calls.app import FunctionCalls, accuracies_of, first_answer_calls
from nemo_gym.servers.testing import serving

EXPECTED = {
    "name": "get_weather",
    "arguments": {
        "city": {"type": "string", "accepted": ["Rome"], "required": True},
        "days": {"type": "integer", "accepted": [3, ""], "required": False},
    },
}


def call(name: str = "get_weather", arguments: Any = '{"city": "Rome"}') -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments}


def says(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def row(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": "What is the weather in Rome?"},
        "response": {"id": "resp", "output": list(output)},
        "category": "simple_python",
        "language": "python",
        "expectation": "these_calls",
        "expected_calls": [EXPECTED],
        "_ng_task_index": 7,
        "anything": {"else": [1, None]},
        **fields,
    }


def judged_by(expectation: str) -> dict[str, Any]:
    return {"expectation": expectation, "expected_calls": []}


async def verified(*output: dict[str, Any], settings: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    async with serving(FunctionCalls, settings) as server:
        reply = await server.post("/verify", row(*output, **fields))
    assert reply.status == 200, reply.body
    return dict(reply.json())


async def test_a_reply_is_the_row_with_reward_and_what_explains_it() -> None:
    sent = row(says("I look."), call())
    async with serving(FunctionCalls) as server:
        reply = (await server.post("/verify", sent)).json()
    assert reply == {**sent, "reward": 1.0, "reason": None, "calls_made": 1, "call_form": "items"}


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ([], "0 calls were made; expected 1"),
        ([says("")], "0 calls were made; expected 1"),
        ([says('[get_weather(city="Rome")]')], "0 calls were made; expected 1"),
        ([call("weather")], "the function called is 'weather'; expected 'get_weather'"),
        ([call(), call()], "2 calls were made; expected 1"),
        ([call(arguments='{"city": "Roma"}')], "the argument 'city' is 'Roma', which is not accepted"),
        ([call(arguments="")], "the arguments of 'get_weather' are no JSON: "),
        ([call(arguments='{"city": "Rome"')], "the arguments of 'get_weather' are no JSON: "),
        ([call(arguments='{"city": "\\ud800"}')], "the argument 'city' is '\ufffd', which is not accepted"),
        ([call(arguments='{"city": NaN}')], "the arguments of 'get_weather' are no JSON: "),
        ([call(arguments='["Rome"]')], "the arguments of 'get_weather' are no JSON object"),
        ([call(arguments=None)], "the arguments of 'get_weather' are no JSON object"),
        ([{"type": "function_call", "arguments": "{}"}], "the arguments of None are no JSON object"),
        ([call(), call(arguments="{")], "the arguments of 'get_weather' are no JSON: "),
        ([call(arguments='{"city": ' + "[" * 5000 + "]" * 5000 + "}")], "the arguments of 'get_weather' are no JSON: "),
        ([call(arguments='{"city": ' + "[" * 900 + "]" * 900 + "}")], "the argument 'city' is a list; expected string"),
        ([call(arguments=json.dumps({"city": "x" * 1_000_000}))], "the argument 'city' is 'xxx"),
        ([call(arguments=json.dumps({"y" * 1_000_000: 1, "city": "Rome"}))], "the argument 'yyy"),
    ],
    ids=range(18),
)  # fmt: skip
async def test_wrong_answers_score_nothing_and_say_why(output: list[dict[str, Any]], reason: str) -> None:
    reply = await verified(*output)
    assert reply["reward"] == 0.0
    assert reply["reason"].startswith(reason)
    assert len(reply["reason"]) < 300


async def test_arguments_may_come_as_an_object() -> None:
    assert (await verified(call(arguments={"city": "Rome", "days": 3})))["reward"] == 1.0


async def test_a_call_in_the_reasoning_is_none() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": 'get_weather(city="Rome")'}]}
    thought = says('<think>[get_weather(city="Rome")]</think>')
    for settings in ({}, {"text_calls": True}):
        assert (await verified(reasoning, thought, settings=settings))["calls_made"] == 0


async def test_only_the_calls_of_the_first_answer_count() -> None:
    tool_output = {"type": "function_call_output", "call_id": "c", "output": "404"}
    output = [says("x"), call(), tool_output, call("other"), tool_output, says("y")]
    assert first_answer_calls(output) == [call()]
    assert (await verified(*output))["reward"] == 1.0


@pytest.mark.parametrize(
    ("expectation", "output", "reward"),
    [
        ("no_call", [says("None of them helps.")], 1.0),
        ("no_call", [], 1.0),
        ("no_call", [call()], 0.0),
        ("no_call", [call(arguments="{")], 0.0),
        ("no_call", [says("f(a=1)")], 1.0),
        ("any_call", [call("anything", "{}")], 1.0),
        ("any_call", [call(), call()], 1.0),
        ("any_call", [call(arguments="{")], 0.0),
        ("any_call", [says("f(a=1)")], 0.0),
        ("any_call", [], 0.0),
    ],
)
async def test_no_call_and_any_call(expectation: str, output: list[dict[str, Any]], reward: float) -> None:
    reply = await verified(*output, **judged_by(expectation))
    assert reply["reward"] == reward
    assert (reply["reason"] is None) == (reward == 1.0)


@pytest.mark.parametrize(
    ("output", "fields", "reward", "form"),
    [
        ([says('[get_weather(city="Rome", days=3)]')], {}, 1.0, "text"),
        ([says('[get_weather(city="Pisa")]')], {}, 0.0, "text"),
        ([says("It is sunny.")], {}, 0.0, None),
        ([says('get_weather(city="Pisa")'), call()], {}, 1.0, "items"),
        ([says("f(a=1)")], judged_by("no_call"), 0.0, "text"),
        ([says("f(a=1)")], judged_by("any_call"), 1.0, "text"),
        ([says("It is sunny.")], judged_by("no_call"), 1.0, None),
        ([says("get_weather(city='\\ud800')")], {}, 0.0, "text"),
    ],
)
async def test_calls_in_the_text_count_where_the_setting_says_so(
    output: list[dict[str, Any]], fields: dict[str, Any], reward: float, form: str | None
) -> None:
    reply = await verified(*output, settings={"text_calls": True}, **fields)
    assert (reply["reward"], reply["call_form"]) == (reward, form)


@pytest.mark.parametrize(
    "field",
    ["category", "language", "expectation", "expected_calls", "response", "responses_create_params"],
)
async def test_a_row_without_a_field_is_refused_by_name(field: str) -> None:
    sent = row(call())
    del sent[field]
    async with serving(FunctionCalls) as server:
        reply = await server.post("/verify", sent)
    assert reply.status == 422
    assert reply.json()["detail"][0]["loc"] == ["body", field]
    assert "reward" not in reply.json()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"language": "rust"}, "language"),
        ({"expectation": "some"}, "expectation"),
        ({"expected_calls": []}, "expected_calls must name the calls"),
        ({"expectation": "no_call"}, "expected_calls must name the calls"),
        ({"expected_calls": [{"name": "f"}]}, "expected_calls.0.arguments"),
        ({"expected_calls": [{"name": "", "arguments": {}}]}, "expected_calls.0.name"),
        ({"language": "java"}, "'city' of get_weather has the type 'string'; java has String"),
    ],
)
async def test_a_row_that_cannot_be_judged_is_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    async with serving(FunctionCalls) as server:
        reply = await server.post("/verify", row(call(), **fields))
    assert reply.status == 422
    assert message in reply.json()["error"]["message"]


async def test_half_a_character_beside_a_right_call_does_not_matter() -> None:
    body = orjson.dumps(row(says("?"), call())).replace(b'"?"', b'"\\ud800"')
    async with serving(FunctionCalls) as server:
        reply = await server.post("/verify", body)
    assert (reply.status, reply.json()["reward"]) == (200, 1.0)


async def test_a_thousand_of_the_slowest_at_once() -> None:
    expected = {
        "name": "f",
        "arguments": {"a": {"type": "array", "items": "String", "accepted": [["x"]], "required": True}},
    }
    slow = call("f", json.dumps({"a": "[" + '"x",' * 990 + '"x"]'}))
    sent = orjson.dumps(row(slow, language="javascript", expected_calls=[expected]))
    began = time.monotonic()
    async with serving(FunctionCalls) as server:
        replies = await asyncio.gather(*(server.post("/verify", sent) for _ in range(1000)))
    assert {(reply.status, reply.json()["reward"]) for reply in replies} == {(200, 0.0)}
    assert time.monotonic() - began < 60


def replies(**rewards: list[float]) -> list[dict[str, Any]]:
    return [{"category": name, "reward": reward} for name, each in rewards.items() for reward in each]


NON_LIVE = replies(
    simple_python=[1, 1, 1, 1], simple_java=[1, 0], simple_javascript=[0], multiple=[1], parallel=[0, 0, 0, 1],
    parallel_multiple=[0],
)  # fmt: skip
LIVE = replies(live_simple=[1, 1], live_multiple=[0] * 6, live_parallel=[1], live_parallel_multiple=[0])
IRRELEVANCE = replies(irrelevance=[1, 0], live_irrelevance=[1])


def test_accuracies_are_made_up_as_the_leaderboard_does() -> None:
    found = accuracies_of([*NON_LIVE, *LIVE, *IRRELEVANCE, *replies(live_relevance=[1, 0, 0, 0])])
    assert found["accuracy/simple_java"] == 0.5
    assert found["accuracy/live_relevance"] == 0.25
    assert found["accuracy/simple"] == 0.5  # of 1, 1/2 and 0
    assert found["accuracy/non_live"] == (0.5 + 1 + 0.25 + 0) / 4
    assert found["accuracy/live"] == 0.3  # 3 of 10 rows
    assert found["accuracy/irrelevance_mean"] == 0.75
    assert found["accuracy/single_turn"] == pytest.approx((0.4375 + 0.3 + 0.75) / 3)


def test_a_mean_is_there_when_all_its_categories_are() -> None:
    assert set(accuracies_of(replies(multiple=[1], live_simple=[0]))) == {"accuracy/multiple", "accuracy/live_simple"}
    assert "accuracy/single_turn" not in accuracies_of([*NON_LIVE, *LIVE])
    assert "accuracy/live" in accuracies_of(LIVE)


async def test_metrics_hold_the_accuracies_and_how_many_called() -> None:
    answers = [await verified(call()), await verified(), await verified(call(), category="multiple")]
    async with serving(FunctionCalls) as server:
        metrics = (await server.post("/aggregate_metrics", {"verify_responses": answers})).json()
        empty = (await server.post("/aggregate_metrics", {"verify_responses": []})).json()
    assert metrics["key_metrics"]["accuracy/simple_python"] == 0.5
    assert metrics["key_metrics"]["accuracy/multiple"] == 1.0
    assert metrics["key_metrics"]["mean/reward"] == pytest.approx(2 / 3)
    assert metrics["agent_metrics"]["called_rate"] == pytest.approx(2 / 3)
    assert empty["key_metrics"] == {}
