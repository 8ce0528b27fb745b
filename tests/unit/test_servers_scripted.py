"""The scripted model: which rule answers, how often, and what its answers look like on both endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from nemo_gym.servers.scripted import (
    Reply,
    Rule,
    Script,
    ScriptedModel,
    ToolCall,
    completion_body,
    error_body,
    last_text,
    response_body,
)

USER = {"role": "user", "content": "What is 2 + 2?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sum is 4"}


def replies(script: Script, *texts: str) -> list[str]:
    model = ScriptedModel(script)
    return [model.answer("/v1/responses", {"input": text}).text for text in texts]


class TestRules:
    def test_a_script_without_rules_gives_one_answer(self) -> None:
        assert replies(Script.answering("B"), "a", "b") == ["B", "B"]

    def test_the_first_that_fits_answers(self) -> None:
        script = Script(
            rules=(
                Rule(contains="France", reply=Reply(text="Paris")),
                Rule(regex=r"\d+ \+ \d+", reply=Reply(text="a sum")),
                Rule(contains="capital", reply=Reply(text="a capital")),
            ),
            otherwise=Reply(text="?"),
        )
        asked = ["the capital of France", "1 + 22", "the capital of Peru", "france"]
        assert replies(script, *asked) == ["Paris", "a sum", "a capital", "?"]

    def test_one_that_is_used_up_answers_no_more(self) -> None:
        script = Script(
            rules=(Rule(reply=Reply(text="first"), times=1), Rule(contains="x", reply=Reply(text="x"), times=2)),
            otherwise=Reply(text="rest"),
        )
        assert replies(script, "x", "y", "x", "x", "x") == ["first", "rest", "x", "x", "rest"]

    def test_a_loaded_script_starts_anew(self) -> None:
        script = Script(rules=(Rule(reply=Reply(text="once"), times=1),), otherwise=Reply(text="after"))
        model = ScriptedModel(script)
        assert [model.answer("/", {"input": "a"}).text for _ in range(2)] == ["once", "after"]
        model.load(script)
        assert model.asked == []
        assert model.answer("/", {"input": "a"}).text == "once"

    def test_what_was_asked_is_kept_up_to_a_number(self) -> None:
        model = ScriptedModel(Script(rules=(Rule(contains="2", reply=Reply(status=429)),)), most_kept=2)
        for text in ("1", "2", "3"):
            model.answer("/v1/responses", {"input": text})
        assert [(one.text, one.status, one.body) for one in model.asked] == [
            ("2", 429, {"input": "2"}),
            ("3", 200, {"input": "3"}),
        ]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"input": "plain"}, "plain"),
        ({"input": [USER]}, "What is 2 + 2?"),
        ({"input": [USER, CALL, RESULT]}, "sum is 4"),
        ({"input": [USER, CALL, RESULT, {**RESULT, "output": "and 5"}]}, "sum is 4\nand 5"),
        ({"input": [USER, CALL, RESULT, {"role": "user", "content": [{"type": "input_text", "text": "ok?"}]}]}, "ok?"),
        ({"messages": [USER, {"role": "assistant", "content": None}, {"role": "tool", "content": "4"}]}, "4"),
        ({"messages": [{"role": "system", "content": "s"}, USER]}, "What is 2 + 2?"),
        ({"messages": [{"role": "system", "content": "s"}]}, ""),
        ({"input": 5}, ""),
        ({}, ""),
    ],
)
def test_rules_see_what_the_model_was_told_last(body: dict[str, Any], text: str) -> None:
    assert last_text(body) == text


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Reply(status=302), "status must be 200, or 400 to 599"),
        (lambda: Reply(status=500, text="x"), "a reply with status 500 is an error"),
        (lambda: Reply(delay_s=-1), "greater than or equal to 0"),
        (lambda: Reply(headers={"Content-Type": "text/plain"}), "the endpoint sets Content-Type itself"),
        (lambda: Rule(reply=Reply(), contains="a", regex="b"), "contains or regex, not both"),
        (lambda: Rule(reply=Reply(), regex="("), r"'\(' is no regular expression"),
        (lambda: Rule(reply=Reply(), times=0), "greater than or equal to 1"),
        (lambda: Script.model_validate({"rule": []}), "Extra inputs are not permitted"),
        (lambda: ToolCall(name=""), "at least 1 character"),
    ],
)
def test_a_script_that_cannot_be_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make()


def test_a_script_reads_back_from_its_json() -> None:
    call = ToolCall(name="add", arguments={"a": [1, None]})
    script = Script(rules=(Rule(regex="a|b", times=3, reply=Reply(tool_calls=(call,), delay_s=0.5)),))
    assert Script.model_validate_json(script.model_dump_json()) == script


class TestBodies:
    REPLY = Reply(
        text="I add.",
        reasoning="2 and 2",
        tool_calls=(ToolCall(name="add", arguments={"a": 2}), ToolCall(name="add", arguments="{oops")),
    )

    def test_a_response(self) -> None:
        body = response_body(self.REPLY, "m", 7)
        kinds = [item["type"] for item in body["output"]]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert body["output"][0]["summary"] == [{"type": "summary_text", "text": "2 and 2"}]
        assert body["output"][1]["content"] == [{"type": "output_text", "text": "I add.", "annotations": []}]
        assert [(i["call_id"], i["arguments"]) for i in body["output"][2:]] == [
            ("call_7_0", '{"a": 2}'),
            ("call_7_1", "{oops"),
        ]
        assert (body["model"], body["status"], body["usage"]["total_tokens"]) == ("m", "completed", 2)

    def test_a_response_with_calls_only_has_no_message(self) -> None:
        calls = Reply(tool_calls=self.REPLY.tool_calls)
        assert {item["type"] for item in response_body(calls, "m", 1)["output"]} == {"function_call"}
        assert [item["type"] for item in response_body(Reply(), "m", 1)["output"]] == ["message"]

    def test_a_completion(self) -> None:
        choice = completion_body(self.REPLY, "m", 7)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["reasoning_content"] == "2 and 2"
        assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"a": 2}', "{oops"]
        plain = completion_body(Reply(text="B"), "m", 8)["choices"][0]
        assert plain == {"index": 0, "message": {"role": "assistant", "content": "B"}, "finish_reason": "stop"}
        assert (
            completion_body(Reply(tool_calls=self.REPLY.tool_calls), "m", 1)["choices"][0]["message"]["content"] is None
        )

    def test_an_error(self) -> None:
        assert error_body(429, "slow down")["error"]["type"] == "invalid_request_error"
        assert json.loads(json.dumps(error_body(503, "busy")))["error"]["message"] == "busy"
