from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.servers.messages import (
    error_message_in,
    filled_response,
    output_text,
    summed_usage,
    without_thinking,
)


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain", "plain"),
        ("<think>no</think>yes", "yes"),
        ("no</think>yes", "yes"),
        ("a<think>b</think>c<think>d</think>e", "e"),
        ("<think>never ends", ""),
        ("said <think>never ends", "said "),
    ],
)
def test_thinking_is_left_out(text: str, visible: str) -> None:
    assert without_thinking(text) == visible


def test_only_what_the_assistant_said_is_its_text() -> None:
    output = [
        {"type": "reasoning", "summary": [{"text": "hidden"}], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "message", "role": "user", "content": "question"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}, {"type": "x"}]},
        {"type": "function_call", "name": "f"},
        {"role": "assistant", "content": "two"},
        {"type": "message", "role": "assistant", "content": None},
    ]  # fmt: skip
    assert output_text({"output": output}) == "one\ntwo\n"
    assert output_text({}) == ""


def test_a_bare_response_is_filled_and_a_full_one_is_kept() -> None:
    bare = filled_response(
        {"output": [{"content": "hi"}, {"type": "function_call", "id": "fc1", "name": "f"}]}, {}, model="m"
    )
    assert (bare["model"], bare["status"], bare["object"]) == ("m", "completed", "response")
    assert (bare["tools"], bare["tool_choice"], bare["parallel_tool_calls"]) == ([], "auto", True)
    assert bare["output"][0]["content"] == [{"type": "output_text", "text": "hi", "annotations": []}]
    assert (bare["output"][1]["call_id"], bare["output"][1]["arguments"]) == ("fc1", "{}")
    assert bare["id"].startswith("resp_")
    full: dict[str, Any] = {
        "id": "r", "created_at": 1, "model": "x", "status": "incomplete", "object": "response", "tools": [1],
        "tool_choice": "none", "parallel_tool_calls": False, "error": None, "incomplete_details": {"reason": "r"},
        "output": [], "usage": None, "own": 1,
    }  # fmt: skip
    assert filled_response(dict(full), {"tools": [2]}, model="m") == full


def test_what_the_request_asked_for_is_echoed() -> None:
    filled = filled_response({"output": []}, {"tools": ["t"], "tool_choice": "required"}, model="m")
    assert (filled["tools"], filled["tool_choice"]) == (["t"], "required")


def test_usage_without_details_is_filled() -> None:
    usage = filled_response({"output": [], "usage": {"input_tokens": 2, "output_tokens": 3}}, {}, model="m")["usage"]
    assert usage["total_tokens"] == 5
    assert usage["input_tokens_details"] == {"cached_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_usage_is_summed_with_its_details() -> None:
    one = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 1}, "tier": "a"}
    two = {"input_tokens": 2, "input_tokens_details": {"cached_tokens": 3}, "cost": 0.5}
    summed = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 4}, "tier": "a", "cost": 0.5}
    assert summed_usage(one, two) == summed
    assert summed_usage(None, one) == one
    assert summed_usage(one, None) == one
    assert summed_usage(None, None) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "m", "code": 1}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"message": "m"}', "m"),
        (b'{"detail": "m"}', "m"),
        (b'{"detail": [{"msg": "x"}]}', '{"detail": [{"msg": "x"}]}'),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b"", "(an empty body)"),
        (b"[1]", "[1]"),
    ],
)
def test_the_sentence_in_an_error_body(body: bytes, message: str) -> None:
    assert error_message_in(body) == message
