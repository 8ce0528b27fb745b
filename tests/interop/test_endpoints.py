"""Our servers in front of endpoints that others wrote: llama.cpp's server, and aimock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.interop.ours import APIS, KEY, openai_model, weather_agent

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "name": "get_weather", "description": "The weather now.", "parameters": PARAMETERS},
    {"type": "function", "name": "pack", "description": "Pack things.", "parameters": {"type": "object"}},
]


def said(response: dict[str, Any]) -> str:
    return "".join(p["text"] for item in response["output"] if item["type"] == "message" for p in item["content"])


@pytest.mark.parametrize("api", APIS)
class TestLlamaServer:
    async def test_both_apis_give_the_same_answer_with_its_usage(self, llama_server: str, api: str) -> None:
        async with openai_model(llama_server, api=api) as model:
            assert (await model.get("/ready")).status == 200
            params = {"input": "Name a colour.", "temperature": 0, "max_output_tokens": 12}
            answer = (await model.post("/v1/responses", params)).json()
        assert answer["status"] in ("completed", "incomplete")
        assert said(answer)
        usage = answer["usage"]
        assert usage["input_tokens"] > 10
        assert 0 < usage["output_tokens"] <= 12
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] >= 0
        assert usage["output_tokens_details"]["reasoning_tokens"] == 0

    async def test_a_conversation_with_tools_is_taken(self, llama_server: str, api: str) -> None:
        conversation = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": '{"city":"Oslo"}'},
            {"type": "function_call_output", "call_id": "a", "output": "snow"},
        ]
        params = {"input": conversation, "tools": TOOLS, "max_output_tokens": 8, "temperature": 0}
        async with openai_model(llama_server, api=api) as model:
            reply = await model.post("/v1/responses", params)
        answer = reply.json()
        assert reply.status == 200
        assert {item["type"] for item in answer["output"]} <= {"message", "function_call"}
        assert answer["tools"] == TOOLS

    async def test_what_it_refuses_is_said_in_its_words(self, llama_server: str, api: str) -> None:
        image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        async with openai_model(llama_server, api=api, retry={"attempts": 1}) as model:
            shown = await model.post("/v1/responses", {"input": [{"role": "user", "content": [image]}]})
            long = await model.post("/v1/responses", {"input": "word " * 5000})
        assert shown.status == 502
        assert "image input is not supported" in shown.json()["error"]["message"]
        assert long.status == 400
        assert "context" in long.json()["error"]["message"]


async def test_an_answer_cut_off_is_incomplete_with_chat_completions(llama_server: str) -> None:
    async with openai_model(llama_server, api="chat_completions") as model:
        params = {"input": "Count to a hundred.", "max_output_tokens": 3, "temperature": 0, "top_logprobs": 2}
        answer = (await model.post("/v1/responses", params)).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    tokens = answer["output"][0]["content"][0]["logprobs"]
    assert len(tokens) == answer["usage"]["output_tokens"] == 3
    assert "".join(token["token"] for token in tokens) == said(answer)
    assert [len(token["top_logprobs"]) for token in tokens] == [2, 2, 2]


@pytest.mark.parametrize("api", APIS)
class TestAimock:
    async def test_a_rollout_over_several_steps_and_tools(self, aimock: str, api: str) -> None:
        row = {"responses_create_params": {"input": "Weather in two cities", "tools": TOOLS}}
        async with openai_model(aimock, api=api) as model, weather_agent(model) as agent:
            reply = await agent.post(f"/ng-rollout/{api}-1/run", row)
        verdict = reply.json()
        assert (reply.status, verdict["reward"]) == (200, 1.0)
        output = verdict["response"]["output"]
        assert [item["type"] for item in output] == [
            "message", "function_call", "function_call", "function_call_output", "function_call_output",
            "function_call", "function_call_output", "message",
        ]  # fmt: skip
        results = [(i["call_id"], i["output"]) for i in output if i["type"] == "function_call_output"]
        assert results == [("call_paris", '"sun"'), ("call_oslo", '"snow"'), ("call_pack", '{"packed":1}')]
        assert verdict["response"]["usage"]["total_tokens"] >= 52

    async def test_reasoning_comes_along_and_is_sent_back(self, aimock: str, api: str) -> None:
        async with openai_model(aimock, api=api) as model:
            answer = (await model.post("/v1/responses", {"input": "Think first"})).json()
            again = await model.post(
                "/v1/responses",
                {
                    "input": [
                        {"role": "user", "content": "Think first"},
                        *answer["output"],
                        {"role": "user", "content": "Say hello"},
                    ]
                },
            )
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][0]["summary"] == [{"type": "summary_text", "text": "six times seven"}]
        assert said(answer) == "42"
        assert said(again.json()) == "Hello!"

    async def test_usage_and_the_end_of_an_answer(self, aimock: str, api: str) -> None:
        async with openai_model(aimock, api=api) as model:
            hello = (await model.post("/v1/responses", {"input": "Say hello"})).json()
            cut = (await model.post("/v1/responses", {"input": "Never stop"})).json()
        assert hello["usage"] == {
            "input_tokens": 7, "output_tokens": 2, "total_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
        assert cut["status"] == "incomplete"

    async def test_a_refusal_is_passed_on_and_the_quota_waited_for(self, aimock: str, api: str) -> None:
        async with openai_model(aimock, api=api, retry={"attempts": 2, "budget_s": 5}) as model:
            refused = await model.post("/v1/responses", {"input": "Too much"})
            began = time.monotonic()
            quota = await model.post("/v1/responses", {"input": "Always busy"})
            waited_s = time.monotonic() - began
        assert refused.status == 400
        assert "This request is too long for the model" in refused.json()["error"]["message"]
        assert quota.status == 429
        assert "The quota is used up" in quota.json()["error"]["message"]
        assert KEY.encode() not in quota.body
        assert waited_s >= 0.95  # aimock asks for a second with Retry-After


async def test_what_was_busy_is_asked_again(aimock: str) -> None:
    async with openai_model(aimock) as model:
        answer = (await model.post("/v1/responses", {"input": "Busy"})).json()
    assert said(answer) == "now I have time"
