from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.servers.chat import ConversionError, chat_messages, chat_request
from nemo_gym.servers.chat_answers import filled_completion, response_of_chat
from nemo_gym.servers.messages import IncompleteAnswerError

TOOL = {"type": "function", "name": "add", "description": "d", "parameters": {"type": "object"}, "strict": True}


def completion(message: Any, finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "c1", "created": 7, "model": "served", "choices": [choice], **fields}


class TestRequest:
    def test_a_string_is_a_user_message_after_the_instructions(self) -> None:
        request = chat_request({"input": "hi", "instructions": "be brief"})
        assert request == {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}

    def test_parameters_take_their_other_names_and_what_means_nothing_here_is_left_out(self) -> None:
        request = chat_request(
            {
                "input": "hi", "temperature": 0.0, "top_p": 1, "max_output_tokens": 5, "top_logprobs": 2, "seed": 3,
                "tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}, "parallel_tool_calls": False,
                "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
                "reasoning": {"effort": "low"}, "chat_template_kwargs": {"x": 1}, "user": None,
                "store": False, "include": ["x"], "truncation": "auto", "metadata": {"a": "b"},
            }
        )  # fmt: skip
        del request["messages"]
        function = {key: TOOL[key] for key in ("name", "description", "parameters", "strict")}
        schema = {"name": "n", "schema": {"type": "object"}}
        assert request == {
            "temperature": 0.0, "top_p": 1, "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "seed": 3,
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "add"}}, "parallel_tool_calls": False,
            "response_format": {"type": "json_schema", "json_schema": schema},
            "reasoning_effort": "low", "chat_template_kwargs": {"x": 1},
        }  # fmt: skip

    def test_newer_endpoints_have_another_name_for_the_token_limit(self) -> None:
        request = chat_request({"input": "x", "max_output_tokens": 9}, max_tokens_field="max_completion_tokens")
        assert request["max_completion_tokens"] == 9
        assert "max_tokens" not in request

    def test_tool_choice_without_tools_is_left_out(self) -> None:
        assert set(chat_request({"input": "x", "tools": [], "tool_choice": "auto"})) == {"messages"}

    def test_a_choice_among_some_tools_names_them_in_the_other_words(self) -> None:
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
        assert chat_request({"input": "x", "tools": [TOOL], "tool_choice": choice})["tool_choice"] == {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]},
        }

    def test_log_probabilities_are_asked_for_in_either_way(self) -> None:
        included = chat_request({"input": "x", "include": ["message.output_text.logprobs"]})
        assert {key: included[key] for key in included if key != "messages"} == {"logprobs": True}

    def test_reasoning_goes_back_under_the_endpoints_own_name_or_not_at_all(self) -> None:
        items = [{"type": "reasoning", "summary": [{"text": "hm"}]}, {"role": "assistant", "content": "yes"}]
        assert chat_messages(None, items, reasoning_field="reasoning") == [
            {"role": "assistant", "content": "yes", "reasoning": "hm"}
        ]
        assert chat_messages(None, items, reasoning_field=None) == [{"role": "assistant", "content": "yes"}]
        assert chat_messages(None, items[:1], reasoning_field=None) == []

    def test_one_turn_of_the_assistant_is_one_message(self) -> None:
        messages = chat_messages(
            None,
            [
                {"role": "developer", "content": "rules"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1+1, 2+2"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "use"}, {"text": "add"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "wait"}]},
                {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"x":1}'},
                {"type": "function_call", "call_id": "b", "name": "add", "arguments": '{"x":2}'},
                {"type": "function_call_output", "call_id": "a", "output": "2"},
                {"type": "function_call_output", "call_id": "b", "output": {"sum": 4}},
                {"role": "assistant", "content": "2 and 4"},
                {"role": "assistant", "content": "done"},
            ],
        )
        calls = [
            {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"x":2}'}},
        ]
        assert messages == [
            {"role": "system", "content": "rules"},
            {"role": "user", "content": "1+1, 2+2"},
            {"role": "assistant", "content": "wait", "reasoning_content": "use\nadd", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a", "content": "2"},
            {"role": "tool", "tool_call_id": "b", "content": '{"sum":4}'},
            {"role": "assistant", "content": "2 and 4"},
            {"role": "assistant", "content": "done"},
        ]

    def test_images_and_files_are_passed_through(self) -> None:
        parts = [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": "data:x", "detail": "low"},
            {"type": "input_file", "filename": "f", "file_data": "data:y"},
        ]
        (message,) = chat_messages(None, [{"role": "user", "content": parts}])
        assert message["content"] == [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
            {"type": "file", "file": {"file_data": "data:y", "filename": "f"}},
        ]

    @pytest.mark.parametrize(
        ("params", "field"),
        [
            ({"input": "x", "previous_response_id": "r"}, "previous_response_id"),
            ({"input": "x", "tools": [TOOL, {"type": "web_search"}]}, "tools.1.type"),
            ({"input": [{"type": "computer_call"}]}, "input.0.type"),
            ({"input": [{"content": [{"type": "odd"}]}]}, "input.0.content.0.type"),
            ({"input": [{"content": [{"type": "input_image", "file_id": "f"}]}]}, "input.0.content.0.image_url"),
            ({"input": [{"content": [{"type": "input_file", "file_url": "https://h/f"}]}]}, "input.0.content.0"),
            ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
            ({"input": "x", "tools": ["a"]}, "tools"),
            ({"input": "x", "tools": {"a": 1}}, "tools"),
            (
                {"input": "x", "tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": 5}},
                "tool_choice.tools",
            ),
            ({"input": "x", "text": "json"}, "text"),
            ({"input": "x", "text": {"format": "json"}}, "text.format"),
            ({"input": "x", "reasoning": "high"}, "reasoning"),
            ({"input": [{"content": ["hi"]}]}, "input.0.content"),
            ({"input": [{"content": {"text": "hi"}}]}, "input.0.content"),
            ({"input": [{"role": "assistant", "content": 5}]}, "input.0.content"),
            ({"input": [{"content": [{"type": "input_text", "text": 5}]}]}, "input.0.content.0.text"),
            ({"input": [{"type": "reasoning", "summary": "hm"}]}, "input.0.summary"),
            ({"input": [{"type": "reasoning", "content": ["hm"]}]}, "input.0.content"),
        ],
    )
    def test_what_cannot_be_said_is_refused_by_name(self, params: dict[str, Any], field: str) -> None:
        with pytest.raises(ConversionError) as caught:
            chat_request(params)
        assert caught.value.field == field


class TestResponse:
    def test_text_reasoning_calls_and_usage(self) -> None:
        call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        message = {"role": "assistant", "content": "hm", "reasoning_content": "think", "tool_calls": [call]}
        usage = {
            "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1},
        }  # fmt: skip
        response = response_of_chat(completion(message, "tool_calls", usage=usage), {"tools": [TOOL]}, model="m")
        reasoning, text, function = response["output"]
        assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [{"type": "summary_text", "text": "think"}])
        assert text["content"] == [{"type": "output_text", "text": "hm", "annotations": []}]
        assert (function["call_id"], function["name"], function["arguments"]) == ("a", "add", "{}")
        assert response["usage"] == {
            "input_tokens": 5, "output_tokens": 3, "total_tokens": 8,
            "input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 1},
        }  # fmt: skip
        assert (response["id"], response["created_at"], response["model"]) == ("c1", 7, "served")
        assert (response["status"], response["object"], response["tools"]) == ("completed", "response", [TOOL])

    @pytest.mark.parametrize(
        ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
    )
    def test_an_answer_cut_off_is_incomplete(self, finish: str, reason: str) -> None:
        response = response_of_chat(completion({"content": "x"}, finish), {}, model="m")
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
        assert response["output"][0]["status"] == "incomplete"

    def test_odd_answers_are_understood(self) -> None:
        response = response_of_chat({"choices": [{"message": {"content": None}}]}, {}, model="m")
        assert response["output"][0]["content"][0]["text"] == ""
        assert response["model"] == "m"
        assert "usage" not in response
        call = {"function": {"name": "f", "arguments": {"a": 1}}}
        (item,) = response_of_chat(completion({"tool_calls": [call]}), {}, model="m")["output"]
        assert item["arguments"] == '{"a":1}'
        assert item["call_id"].startswith("call_")
        parts = completion({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
        assert response_of_chat(parts, {}, model="m")["output"][0]["content"][0]["text"] == "ab"
        refusal = response_of_chat(completion({"content": None, "refusal": "no"}), {}, model="m")["output"][0]
        assert refusal["content"] == [{"type": "refusal", "refusal": "no"}]

    def test_logprobs_stay_with_the_text(self) -> None:
        body = completion({"content": "x"})
        body["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -0.1}]}
        assert response_of_chat(body, {}, model="m")["output"][0]["content"][0]["logprobs"][0]["token"] == "x"

    def test_what_only_chat_completions_say_is_kept(self) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"audio_tokens": 1}, "cost": 0.5}
        body = completion({"content": "x"}, usage=usage, service_tier="flex", timings={"ms": 3})
        response = response_of_chat(body, {}, model="m")
        assert (response["service_tier"], response["timings"]) == ("flex", {"ms": 3})
        assert response["usage"] == {
            "input_tokens": 5, "output_tokens": 3, "total_tokens": 8, "cost": 0.5,
            "input_tokens_details": {"audio_tokens": 1, "cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
        cited = {"type": "url_citation", "url_citation": {"url": "u", "start_index": 0}}
        said = response_of_chat(completion({"content": "x", "annotations": [cited]}), {}, model="m")["output"][0]
        assert said["content"][0]["annotations"] == [{"type": "url_citation", "url": "u", "start_index": 0}]

    def test_a_call_as_it_was_before_there_were_tools(self) -> None:
        message = {"content": None, "function_call": {"name": "f", "arguments": "{}"}}
        (item,) = response_of_chat(completion(message, "function_call"), {}, model="m")["output"]
        assert (item["type"], item["name"]) == ("function_call", "f")

    @pytest.mark.parametrize(
        ("message", "finish", "says"),
        [
            ({"content": None, "tool_calls": []}, "tool_calls", "no tool call"),
            ({"content": "half"}, "error", "finish_reason is error"),
            ({"content": None, "audio": {"id": "a"}}, "stop", "audio"),
            ({"content": None, "tool_calls": [{"id": "a"}]}, "tool_calls", "names no function"),
            ({"content": None, "tool_calls": {"name": "f"}}, "tool_calls", "no list of calls"),
            ({"content": [{"type": "text", "text": 3}]}, "stop", "no text"),
        ],
    )
    def test_no_answer_is_never_taken_for_an_empty_one(self, message: Any, finish: str, says: str) -> None:
        with pytest.raises(IncompleteAnswerError, match=says):
            response_of_chat(completion(message, finish), {}, model="m")

    @pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": None}, {"choices": [{}]}, {"choices": [3]}])
    def test_what_is_no_completion_is_an_error(self, body: dict[str, Any]) -> None:
        with pytest.raises(IncompleteAnswerError):
            response_of_chat(body, {}, model="m")

    def test_a_round_trip_keeps_the_conversation(self) -> None:
        call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        message = {"role": "assistant", "content": "hm", "reasoning_content": "think", "tool_calls": [call]}
        output = response_of_chat(completion(message), {}, model="m")["output"]
        assert chat_messages(None, output) == [message]

    def test_completions_get_what_clients_count_on(self) -> None:
        filled = filled_completion({"choices": [{"message": {"content": "x"}}]}, model="m")
        assert filled["object"] == "chat.completion"
        assert filled["model"] == "m"
        assert filled["choices"] == [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
        ]

    def test_and_their_tool_calls_too(self) -> None:
        call = {"function": {"name": "f", "arguments": {"a": 1}}}
        choice = {"message": {"content": None, "tool_calls": [call]}, "finish_reason": None}
        (filled,) = filled_completion({"choices": [choice]}, model="m")["choices"]
        (made,) = filled["message"]["tool_calls"]
        assert (made["type"], made["function"]) == ("function", {"name": "f", "arguments": '{"a":1}'})
        assert made["id"].startswith("call_")
        assert filled["finish_reason"] == "tool_calls"

    @pytest.mark.parametrize("choices", [[{"message": None}], [{"message": {}}, 3], [{"message": {}}, {}]])
    def test_a_choice_without_a_message_is_an_error(self, choices: Any) -> None:
        with pytest.raises(IncompleteAnswerError, match="no message"):
            filled_completion({"choices": choices}, model="m")
