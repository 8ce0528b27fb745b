"""The Messages API over the Responses API."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.servers.anthropic_messages import message_of_response, responses_request
from nemo_gym.servers.base import RequestError
from nemo_gym.servers.chat import ConversionError, chat_messages
from nemo_gym.servers.messages import JsonDict
from nemo_gym.servers.model import ModelServer
from nemo_gym.servers.testing import serving

ASKED = {"role": "user", "content": "q"}
TOOL = {"name": "add", "description": "d", "input_schema": {"type": "object"}}


class TestRequest:
    def test_a_conversation_with_everything(self) -> None:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
        request = responses_request(
            {
                "model": "m", "max_tokens": 9, "temperature": 0.5, "stop_sequences": ["END"],
                "system": [
                    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "b"},
                ],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "signature": "sealed"},
                            {"type": "redacted_thinking", "data": "hidden"},
                            {"type": "text", "text": "so"},
                            {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "2"}]},
                            {"type": "tool_result", "tool_use_id": "b", "content": [image], "is_error": True},
                            {"type": "text", "text": "go on"},
                        ],
                    },
                ],
                "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
            }
        )  # fmt: skip
        hm = {"type": "summary_text", "text": "hm"}
        shown = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
        assert request == {
            "max_output_tokens": 9, "temperature": 0.5, "stop": ["END"], "instructions": "a\n\nb", "user": "u",
            "reasoning": {"summary": "auto"},
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}, shown]},
                {"type": "reasoning", "summary": [hm], "encrypted_content": "sealed"},
                {"type": "reasoning", "summary": [], "encrypted_content": "hidden"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
                {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"x":1}'},
                {"type": "function_call_output", "call_id": "a", "output": "2"},
                {"type": "function_call_output", "call_id": "b", "output": [shown]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
            ],
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("choice", "wanted"),
        [
            ({"type": "auto"}, {"tool_choice": "auto"}),
            (
                {"type": "any", "disable_parallel_tool_use": True},
                {"tool_choice": "required", "parallel_tool_calls": False},
            ),
            ({"type": "none"}, {"tool_choice": "none"}),
            ({"type": "tool", "name": "add"}, {"tool_choice": {"type": "function", "name": "add"}}),
            (None, {}),
        ],
    )
    def test_tools(self, choice: Any, wanted: JsonDict) -> None:
        request = responses_request({"messages": [ASKED], "tools": [TOOL], "tool_choice": choice})
        del request["input"]
        function = {"type": "function", "name": "add", "description": "d", "parameters": {"type": "object"}}
        assert request == {"tools": [{**function, "strict": False}], **wanted}

    def test_documents_and_formats(self) -> None:
        pdf = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
        sources = [pdf, {"type": "text", "data": "plain"}, {"type": "url", "url": "https://h/x.pdf"}]
        blocks = [{"type": "document", "title": "t", "source": source} for source in sources]
        schema = {"type": "json_schema", "schema": {"type": "object"}}
        request = responses_request(
            {"messages": [{"role": "user", "content": blocks}], "output_config": {"effort": "low", "format": schema}}
        )
        assert request["input"][0]["content"] == [
            {"type": "input_file", "filename": "t", "file_data": "data:application/pdf;base64,AA=="},
            {"type": "input_text", "text": "plain"},
            {"type": "input_file", "file_url": "https://h/x.pdf"},
        ]
        assert request["reasoning"] == {"effort": "low"}
        assert request["text"]["format"] == {**schema, "name": "output", "strict": True}

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "messages"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
            ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
            ({"messages": [{"role": "user", "content": [{"type": "odd"}]}]}, "messages.0.content.0.type"),
            ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
             "messages.0.content.0.source.type"),
            ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [3]}]}]},
             "messages.0.content.0.content.0.type"),
            ({"messages": [ASKED], "tools": [TOOL, {"type": "web_search_20250305", "name": "w"}]}, "tools.1.type"),
            ({"messages": [ASKED], "tools": [TOOL], "tool_choice": {"type": "odd"}}, "tool_choice.type"),
            ({"messages": [ASKED], "mcp_servers": [{}]}, "mcp_servers"),
            ({"messages": [ASKED], "system": [{"type": "image"}]}, "system"),
            ({"messages": [ASKED], "system": 5}, "system"),
            ({"messages": [ASKED], "system": [{"type": "text", "text": 5}]}, "system.text"),
            ({"messages": [ASKED], "tools": 5}, "tools"),
            ({"messages": [ASKED], "tools": ["a"]}, "tools"),
            ({"messages": [ASKED], "tools": [TOOL], "tool_choice": {"type": ["auto"]}}, "tool_choice.type"),
            ({"messages": [ASKED], "thinking": "on"}, "thinking"),
            ({"messages": [ASKED], "output_config": "j"}, "output_config"),
            ({"messages": [ASKED], "output_config": {"format": "j"}}, "output_config.format"),
            ({"messages": [ASKED], "output_format": ["j"]}, "output_format"),
            ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages.0.content.0.text"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_said_is_refused_by_name(self, body: JsonDict, field: str) -> None:
        with pytest.raises(ConversionError) as caught:
            responses_request(body)
        assert caught.value.field == field


def response(*output: Any, **more: Any) -> JsonDict:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}
    return {"id": "r", "model": "m", "output": list(output), "usage": usage, **more}


def said(*parts: Any) -> JsonDict:
    return {"type": "message", "content": list(parts)}


class TestAnswer:
    TEXT = {"type": "output_text", "text": "so"}  # noqa: RUF012

    def test_everything_a_response_says(self) -> None:
        thought = {"type": "reasoning", "summary": [{"text": "hm"}], "encrypted_content": "sealed"}
        hidden = {"type": "reasoning", "summary": [], "encrypted_content": "hidden"}
        call = {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"x":1}'}
        assert message_of_response(response(thought, hidden, said(self.TEXT), call)) == {
            "id": "r", "type": "message", "role": "assistant", "model": "m",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sealed"},
                {"type": "redacted_thinking", "data": "hidden"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}},
            ],
            "stop_reason": "tool_use", "stop_sequence": None,
            "usage": {
                "input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 2
            },
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("part", "details", "reason"),
        [
            (TEXT, None, "end_turn"),
            (TEXT, {"reason": "max_output_tokens"}, "max_tokens"),
            (TEXT, {"reason": "content_filter"}, "refusal"),
            ({"type": "refusal", "refusal": "no"}, None, "refusal"),
        ],
    )
    def test_why_it_ended(self, part: Any, details: Any, reason: str) -> None:
        message = message_of_response(response(said(part), incomplete_details=details))
        assert message["stop_reason"] == reason
        assert message["content"] == [{"type": "text", "text": part.get("text") or part.get("refusal")}]

    @pytest.mark.parametrize(
        ("arguments", "given"),
        [("", {}), ("{", {"arguments": "{"}), ("[1]", {"arguments": [1]}), ('{"a":1}', {"a": 1})],
    )
    def test_arguments_are_an_object_whatever_the_model_wrote(self, arguments: str, given: Any) -> None:
        call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments}
        assert message_of_response(response(call))["content"][0]["input"] == given

    def test_what_it_answered_can_be_sent_back(self) -> None:
        output = [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [self.TEXT]},
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"x":1}'},
        ]
        content = message_of_response(response(*output))["content"]
        items = responses_request({"messages": [{"role": "assistant", "content": content}]})["input"]
        assert items == output
        assert len(chat_messages(None, items)) == 1


texts = st.text(min_size=1, max_size=20)
inputs = st.dictionaries(
    st.text(max_size=9), st.integers(-(2**53), 2**53) | texts | st.lists(st.booleans()), max_size=3
)
blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda text, seal: {"type": "thinking", "thinking": text, "signature": seal}, texts, st.text(max_size=9)),
    st.builds(lambda data: {"type": "redacted_thinking", "data": data}, texts),
    st.builds(lambda i, name, value: {"type": "tool_use", "id": i, "name": name, "input": value}, texts, texts, inputs),
)


@given(st.lists(blocks, max_size=5))
def test_an_answer_comes_back_as_it_was(content: list[JsonDict]) -> None:
    items = responses_request({"messages": [{"role": "assistant", "content": content}]})["input"]
    assert message_of_response(response(*items))["content"] == content


class Echo(ModelServer):
    async def responses(self, params: JsonDict) -> JsonDict:
        if params["input"][0]["content"] == "fail":
            raise RequestError(429, "endpoint_error", "quota of sk-a-long-secret-0123456789 is used up")
        return response(said({"type": "output_text", "text": params["input"][0]["content"]}))


async def test_the_route_answers_and_says_errors_in_its_clients_words() -> None:
    async with serving(Echo, {"api_key": "sk-a-long-secret-0123456789"}) as model:
        good = await model.post("/ng-rollout/r1/v1/messages", {"model": "m", "max_tokens": 5, "messages": [ASKED]})
        failed = await model.post("/v1/messages", {"messages": [{"role": "user", "content": "fail"}]})
        wrong = await model.post("/v1/messages", {"messages": []})
        no_object = await model.post("/v1/messages", [])
        stream = await model.post("/v1/messages", {"messages": [ASKED], "stream": True})
    assert (good.status, good.json()["content"]) == (200, [{"type": "text", "text": "q"}])
    message = "quota of *** is used up"
    assert (failed.status, failed.json()["error"]) == (429, {"type": "rate_limit_error", "message": message})
    for reply, field in ((wrong, "messages"), (no_object, "body"), (stream, "stream")):
        assert (reply.status, reply.json()["type"]) == (422, "error")
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert field in reply.json()["error"]["message"]
