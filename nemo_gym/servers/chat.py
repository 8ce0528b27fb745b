"""Responses API <-> chat completions, for endpoints that have only the latter. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nemo_gym.servers.messages import JsonDict, filled_response, filled_usage, new_id, text_message

# Parameters of the Responses API that have no counterpart in chat completions and change no answer.
_DROPPED = frozenset(
    {"background", "include", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
    | {"store", "stream", "stream_options", "truncation", "metadata", "service_tier"}
)
# Parameters that would change the answer, and cannot be carried over.
_IMPOSSIBLE = ("previous_response_id", "conversation", "prompt")
_CONVERTED = frozenset(
    {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "text", "reasoning"}
    | {"top_logprobs"}
)

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ConversionError(ValueError):
    """A part of a request that chat completions cannot express; ``field`` says which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class IncompleteAnswerError(ValueError):
    """An answer that is no chat completion; the message says what it lacks."""


def chat_request(params: Mapping[str, Any], *, max_tokens_field: str = "max_tokens") -> JsonDict:
    """The chat completions request that asks what a Responses API request asks."""
    for key in _IMPOSSIBLE:
        if params.get(key) is not None:
            raise ConversionError(key, "an endpoint with chat completions only cannot do this")
    request: JsonDict = {"messages": chat_messages(params.get("instructions"), params["input"])}
    if params.get("max_output_tokens") is not None:
        request[max_tokens_field] = params["max_output_tokens"]
    if params.get("tools"):
        request["tools"] = [_chat_tool(tool, position) for position, tool in enumerate(params["tools"])]
        if params.get("tool_choice") is not None:
            request["tool_choice"] = _chat_tool_choice(params["tool_choice"])
        if params.get("parallel_tool_calls") is not None:
            request["parallel_tool_calls"] = params["parallel_tool_calls"]
    if params.get("top_logprobs") is not None:
        request.update(logprobs=True, top_logprobs=params["top_logprobs"])
    text = params.get("text") or {}
    if (text.get("format") or {}).get("type", "text") != "text":
        request["response_format"] = _chat_response_format(text["format"])
    if text.get("verbosity") is not None:
        request["verbosity"] = text["verbosity"]
    if (params.get("reasoning") or {}).get("effort") is not None:
        request["reasoning_effort"] = params["reasoning"]["effort"]
    for key, value in params.items():
        if value is not None and key not in _CONVERTED and key not in _DROPPED:
            request.setdefault(key, value)
    return request


def chat_messages(instructions: str | None, items: str | Sequence[Mapping[str, Any]]) -> list[JsonDict]:
    """Chat messages of a conversation. What an assistant thought, said and called in one turn is one message."""
    messages: list[JsonDict] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    turn: JsonDict | None = None  # the assistant's turn that is still open
    for position, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") != "assistant":
            messages.append(_chat_message(item, f"input.{position}"))
            turn = None
        elif kind == "function_call_output":
            messages.append(_chat_tool_message(item, f"input.{position}"))
            turn = None
        else:
            # A message after tool calls, or a second message, opens a turn of its own: order is kept.
            if turn is None or (kind != "function_call" and ("tool_calls" in turn or turn["content"] is not None)):
                turn = {"role": "assistant", "content": None}
                messages.append(turn)
            _add_to_turn(turn, item, f"input.{position}")
    return messages


def _add_to_turn(turn: JsonDict, item: Mapping[str, Any], field: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        turn["content"] = _chat_content(item.get("content"), field)
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        text = _reasoning_text(item)
        if text:
            before = turn.get("reasoning_content")
            turn["reasoning_content"] = f"{before}\n{text}" if before else text
    else:
        raise ConversionError(f"{field}.type", f"chat completions have no item of type {kind!r}")


def _reasoning_text(item: Mapping[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or ()
    return "\n".join(part.get("text") or "" for part in parts)


def _chat_message(item: Mapping[str, Any], field: str) -> JsonDict:
    role = item.get("role") or "user"
    # Endpoints that have chat completions only rarely know the newer name of the system role.
    return {"role": "system" if role == "developer" else role, "content": _chat_content(item.get("content"), field)}


def _chat_tool_message(item: Mapping[str, Any], field: str) -> JsonDict:
    output = item.get("output")
    if isinstance(output, list):
        output = _chat_content(output, field)
    elif not isinstance(output, str):
        output = orjson.dumps(output).decode()
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}


def _chat_content(content: Any, field: str) -> Any:
    if content is None or isinstance(content, str):
        return content
    parts = [_chat_part(part, f"{field}.content.{position}") for position, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        # Text alone goes as a string: chat templates of many local models know nothing else.
        return "".join(part["text"] for part in parts)
    return parts


def _chat_part(part: Mapping[str, Any], field: str) -> JsonDict:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": part.get("text") or ""}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal") or ""}
    if kind == "input_image":
        if not part.get("image_url"):
            raise ConversionError(f"{field}.image_url", "chat completions take an image by its URL only")
        image = {"url": part["image_url"]}
        if part.get("detail"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file":
        names = ("file_data", "file_id", "filename")
        return {"type": "file", "file": {name: part[name] for name in names if part.get(name)}}
    if kind in ("image_url", "file"):
        return dict(part)
    raise ConversionError(f"{field}.type", f"chat completions have no content of type {kind!r}")


def _chat_tool(tool: Mapping[str, Any], position: int) -> JsonDict:
    if tool.get("type") != "function":
        raise ConversionError(f"tools.{position}.type", f"chat completions have no tool of type {tool.get('type')!r}")
    if isinstance(tool.get("function"), dict):
        return dict(tool)
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _chat_tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _chat_response_format(text_format: Mapping[str, Any]) -> JsonDict:
    if text_format.get("type") != "json_schema":
        return dict(text_format)
    schema = {key: value for key, value in text_format.items() if key != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def response_of_chat(completion: Mapping[str, Any], params: Mapping[str, Any], *, model: str) -> JsonDict:
    """The Responses API response that says what a chat completion says."""
    choice = first_choice(completion)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise IncompleteAnswerError("its first choice has no message")
    reason = _INCOMPLETE.get(str(choice.get("finish_reason")))
    status = "incomplete" if reason else "completed"
    response: JsonDict = {
        "id": completion.get("id") or new_id("resp"),
        "created_at": completion.get("created") or time.time(),
        "model": completion.get("model") or model,
        "status": status,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": _output_items(message, choice.get("logprobs"), status),
    }
    for key in ("instructions", "temperature", "top_p", "max_output_tokens", "metadata"):
        if params.get(key) is not None:
            response[key] = params[key]
    if isinstance(completion.get("usage"), Mapping):
        response["usage"] = response_usage(completion["usage"])
    return filled_response(response, params, model=model)


def first_choice(completion: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a chat completion."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise IncompleteAnswerError("it has no choices")
    return choices[0]


def _output_items(message: Mapping[str, Any], logprobs: Any, status: str) -> list[JsonDict]:
    items: list[JsonDict] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        summary = [{"type": "summary_text", "text": reasoning}]
        items.append({"id": new_id("rs"), "type": "reasoning", "summary": summary})
    calls = message.get("tool_calls") or ()
    text, refusal = _text_of(message.get("content")), message.get("refusal")
    if text or refusal or not calls:
        item = text_message(text, status=status)
        if isinstance(logprobs, Mapping) and logprobs.get("content"):
            item["content"][0]["logprobs"] = logprobs["content"]
        if refusal:
            item["content"] = (
                [*item["content"], {"type": "refusal", "refusal": refusal}]
                if text
                else [{"type": "refusal", "refusal": refusal}]
            )
        items.append(item)
    items += [_function_call(call, status) for call in calls]
    return items


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _function_call(call: Mapping[str, Any], status: str) -> JsonDict:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments or {}).decode()
    return {
        "id": new_id("fc"),
        "type": "function_call",
        "call_id": call.get("id") or new_id("call"),
        "name": function.get("name") or "",
        "arguments": arguments,
        "status": status,
    }


def response_usage(usage: Mapping[str, Any]) -> JsonDict:
    """Chat completions' usage in the Responses API's words."""
    details_in = usage.get("prompt_tokens_details") or {}
    details_out = usage.get("completion_tokens_details") or {}
    return filled_usage(
        {
            "input_tokens": usage.get("prompt_tokens"),
            "output_tokens": usage.get("completion_tokens"),
            "total_tokens": usage.get("total_tokens"),
            "input_tokens_details": {"cached_tokens": details_in.get("cached_tokens")},
            "output_tokens_details": {"reasoning_tokens": details_out.get("reasoning_tokens")},
        }
    )


def filled_completion(completion: JsonDict, *, model: str) -> JsonDict:
    """A chat completion with the fields that clients count on. Changes the dict it is given, and returns it."""
    first_choice(completion)
    for key, default in (("id", new_id("chatcmpl")), ("created", int(time.time())), ("model", model)):
        if not completion.get(key):
            completion[key] = default
    completion["object"] = "chat.completion"
    for position, choice in enumerate(completion["choices"]):
        choice.setdefault("index", position)
        choice.setdefault("finish_reason", "stop")
        message = choice.setdefault("message", {})
        message.setdefault("role", "assistant")
        message.setdefault("content", None)
    return completion
