"""Chat completions as Responses API responses, and with what clients count on filled in. Pure.

``chat`` holds the other direction. What one has no words for is kept under its own name (further fields of a
completion and of its usage), so that nothing an endpoint says is lost on the way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from nemo_gym.servers.messages import (
    IncompleteAnswerError,
    JsonDict,
    arguments_text,
    filled_response,
    filled_usage,
    new_id,
    text_in,
    text_message,
)

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Servers also end a request that they could not finish as if it were an answer.
_NO_ANSWER = frozenset({"error", "abort", "insufficient_system_resource"})
_COMPLETION_FIELDS = frozenset({"id", "object", "created", "model", "choices", "usage"})
_ECHOED = ("instructions", "temperature", "top_p", "max_output_tokens", "metadata")
_USAGE_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}


def response_of_chat(completion: Mapping[str, Any], params: Mapping[str, Any], *, model: str) -> JsonDict:
    """The Responses API response that says what a chat completion says."""
    choice = first_choice(completion)
    reason = _INCOMPLETE.get(_checked_finish(choice))
    status = "incomplete" if reason else "completed"
    response: JsonDict = {
        **{key: value for key, value in completion.items() if key not in _COMPLETION_FIELDS},
        "id": completion.get("id") or new_id("resp"),
        "created_at": completion.get("created") or time.time(),
        "model": completion.get("model") or model,
        "status": status,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": _output_items(choice, status),
    }
    for key in _ECHOED:
        if params.get(key) is not None:
            response[key] = params[key]
    if isinstance(completion.get("usage"), Mapping):
        response["usage"] = response_usage(completion["usage"])
    return filled_response(response, params, model=model)


def first_choice(completion: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a chat completion, which has a message."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise IncompleteAnswerError("it has no choices")
    choice: Mapping[str, Any] = choices[0]
    if not isinstance(choice.get("message"), Mapping):
        raise IncompleteAnswerError("its first choice has no message")
    return choice


def _checked_finish(choice: Mapping[str, Any]) -> str:
    finish = str(choice.get("finish_reason"))
    if finish in _NO_ANSWER:
        raise IncompleteAnswerError(f"its finish_reason is {finish}")
    return finish


def _output_items(choice: Mapping[str, Any], status: str) -> list[JsonDict]:
    message: Mapping[str, Any] = choice["message"]
    items: list[JsonDict] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        summary = [{"type": "summary_text", "text": reasoning}]
        items.append({"id": new_id("rs"), "type": "reasoning", "summary": summary})
    calls = _tool_calls(message)
    text, refusal = _said(message)
    if not (text or refusal or calls):
        if choice.get("finish_reason") == "tool_calls":
            raise IncompleteAnswerError("its finish_reason is tool_calls, and it has no tool call")
        if message.get("audio"):
            raise IncompleteAnswerError("it answers with audio, which the Responses API does not carry")
    if text or refusal or not calls:
        items.append(_message_item(message, choice.get("logprobs"), text, refusal, status))
    items += [_function_call(call, status) for call in calls]
    return items


def _message_item(message: Mapping[str, Any], logprobs: Any, text: str, refusal: str, status: str) -> JsonDict:
    item = text_message(text, status=status)
    said = item["content"][0]
    if isinstance(logprobs, Mapping) and logprobs.get("content"):
        said["logprobs"] = logprobs["content"]
    annotations = message.get("annotations")
    if isinstance(annotations, list):
        said["annotations"] = [_annotation(entry) for entry in annotations if isinstance(entry, Mapping)]
    if refusal:
        item["content"] = [*([said] if text else []), {"type": "refusal", "refusal": refusal}]
    return item


def _annotation(entry: Mapping[str, Any]) -> JsonDict:
    """``{"type": t, t: {...}}`` of chat completions is flat in the Responses API."""
    kind = entry.get("type")
    inner = entry.get(kind) if isinstance(kind, str) else None
    return {"type": kind, **inner} if isinstance(inner, Mapping) else dict(entry)


def _said(message: Mapping[str, Any]) -> tuple[str, str]:
    """The text and the refusal of a message, whose content may also be parts."""
    content, refusal = message.get("content"), message.get("refusal")
    refusals = [refusal] if isinstance(refusal, str) else []
    if not isinstance(content, list):
        return (content if isinstance(content, str) else ""), "".join(refusals)
    parts = [part for part in content if isinstance(part, Mapping)]
    refusals += [text_in(part, "refusal") for part in parts if part.get("type") == "refusal"]
    return "".join(text_in(part, "text") for part in parts if part.get("type", "text") == "text"), "".join(refusals)


def _tool_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    if calls is None and isinstance(message.get("function_call"), Mapping):
        return [{"function": message["function_call"]}]  # as the API was before it had tools
    if calls is None:
        return []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise IncompleteAnswerError("its tool_calls are no list of calls")
    return calls


def _function_call(call: Mapping[str, Any], status: str) -> JsonDict:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise IncompleteAnswerError("it has a tool call that names no function")
    return {
        "id": new_id("fc"),
        "type": "function_call",
        "call_id": call.get("id") or new_id("call"),
        "name": function["name"],
        "arguments": arguments_text(function.get("arguments")),
        "status": status,
    }


def response_usage(usage: Mapping[str, Any]) -> JsonDict:
    """Chat completions' usage in the Responses API's words; what has none there keeps its own."""
    return filled_usage({_USAGE_NAMES.get(key, key): value for key, value in usage.items()})


def filled_completion(completion: JsonDict, *, model: str) -> JsonDict:
    """A chat completion with the fields that clients count on. Changes the dict it is given, and returns it.

    Raises ``IncompleteAnswerError`` for one that is no answer.
    """
    first_choice(completion)
    for key, default in (("id", new_id("chatcmpl")), ("created", int(time.time())), ("model", model)):
        if not completion.get(key):
            completion[key] = default
    completion["object"] = "chat.completion"
    for position, choice in enumerate(completion["choices"]):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise IncompleteAnswerError(f"its choice {position} has no message")
        choice.setdefault("index", position)
        message = choice["message"]
        message.setdefault("role", "assistant")
        message.setdefault("content", None)
        calls = _tool_calls(message)
        for call in calls:
            _fill_tool_call(call)
        if choice.get("finish_reason") is None:
            choice["finish_reason"] = "tool_calls" if calls else "stop"
        _checked_finish(choice)
    return completion


def _fill_tool_call(call: Any) -> None:
    if not call.get("id"):
        call["id"] = new_id("call")
    call.setdefault("type", "function")
    if isinstance(call.get("function"), dict):
        call["function"]["arguments"] = arguments_text(call["function"].get("arguments"))
