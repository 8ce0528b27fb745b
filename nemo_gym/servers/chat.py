"""Responses API requests as chat completions requests, for endpoints that have only those. Pure.

``chat_answers`` holds the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.servers.json_values import dumps
from nemo_gym.servers.messages import JsonDict, arguments_text

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

LOGPROBS = "message.output_text.logprobs"
"""What ``include`` calls the log probabilities of the answer's tokens."""


class ConversionError(ValueError):
    """A part of a request that chat completions cannot express; ``field`` says which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def mapping_of(value: Any, field: str) -> Mapping[str, Any]:
    """A part of a request that is an object, or not there."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise ConversionError(field, f"needed: an object; found {type(value).__name__}")


def mappings_of(value: Any, field: str) -> Sequence[Mapping[str, Any]]:
    """A part of a request that is a list of objects, or not there."""
    if value is None or (isinstance(value, list) and all(isinstance(item, Mapping) for item in value)):
        return value or ()
    raise ConversionError(field, "needed: a list of objects")


def text_of(part: Mapping[str, Any], field: str) -> str:
    """What a part of a message says."""
    text = part.get("text")
    if text is None or isinstance(text, str):
        return text or ""
    raise ConversionError(f"{field}.text", f"needed: a text; found {type(text).__name__}")


def chat_request(
    params: Mapping[str, Any],
    *,
    max_tokens_field: str = "max_tokens",
    reasoning_field: str | None = "reasoning_content",
) -> JsonDict:
    """The chat completions request that asks what a Responses API request asks.

    ``reasoning_field``: the field of a message that carries what the assistant thought before; None: it is left out.
    """
    for key in _IMPOSSIBLE:
        if params.get(key) is not None:
            raise ConversionError(key, "an endpoint with chat completions only cannot do this")
    request: JsonDict = {
        "messages": chat_messages(params.get("instructions"), params["input"], reasoning_field=reasoning_field)
    }
    if params.get("max_output_tokens") is not None:
        request[max_tokens_field] = params["max_output_tokens"]
    if params.get("tools"):
        tools = mappings_of(params["tools"], "tools")
        request["tools"] = [_chat_tool(tool, position) for position, tool in enumerate(tools)]
        if params.get("tool_choice") is not None:
            request["tool_choice"] = _chat_tool_choice(params["tool_choice"])
        if params.get("parallel_tool_calls") is not None:
            request["parallel_tool_calls"] = params["parallel_tool_calls"]
    if params.get("top_logprobs") is not None:
        request.update(logprobs=True, top_logprobs=params["top_logprobs"])
    elif isinstance(params.get("include"), list) and LOGPROBS in params["include"]:
        request["logprobs"] = True
    text = mapping_of(params.get("text"), "text")
    text_format = mapping_of(text.get("format"), "text.format")
    if text_format.get("type", "text") != "text":
        request["response_format"] = _chat_response_format(text_format)
    if text.get("verbosity") is not None:
        request["verbosity"] = text["verbosity"]
    effort = mapping_of(params.get("reasoning"), "reasoning").get("effort")
    if effort is not None:
        request["reasoning_effort"] = effort
    for key, value in params.items():
        if value is not None and key not in _CONVERTED and key not in _DROPPED:
            request.setdefault(key, value)
    return request


def chat_messages(
    instructions: str | None,
    items: str | Sequence[Mapping[str, Any]],
    *,
    reasoning_field: str | None = "reasoning_content",
) -> list[JsonDict]:
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
            _add_to_turn(turn, item, f"input.{position}", reasoning_field)
    # A turn of which nothing is left (reasoning that goes unsent) would be a message that says nothing.
    return [message for message in messages if message["content"] is not None or len(message) > 2]


def _add_to_turn(turn: JsonDict, item: Mapping[str, Any], field: str, reasoning_field: str | None) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        turn["content"] = _chat_content(item.get("content"), field)
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": arguments_text(item.get("arguments")) or "{}"}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        text = _reasoning_text(item, field)
        if text and reasoning_field:
            before = turn.get(reasoning_field)
            turn[reasoning_field] = f"{before}\n{text}" if before else text
    else:
        raise ConversionError(f"{field}.type", f"chat completions have no item of type {kind!r}")


def _reasoning_text(item: Mapping[str, Any], field: str) -> str:
    name = "content" if item.get("content") else "summary"
    return "\n".join(text_of(part, f"{field}.{name}") for part in mappings_of(item.get(name), f"{field}.{name}"))


def _chat_message(item: Mapping[str, Any], field: str) -> JsonDict:
    role = item.get("role") or "user"
    # Endpoints that have chat completions only rarely know the newer name of the system role.
    return {"role": "system" if role == "developer" else role, "content": _chat_content(item.get("content"), field)}


def _chat_tool_message(item: Mapping[str, Any], field: str) -> JsonDict:
    output = item.get("output")
    if isinstance(output, list):
        output = _chat_content(output, field)
    elif not isinstance(output, str):
        output = dumps(output).decode()
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}


def _chat_content(content: Any, field: str) -> Any:
    if content is None or isinstance(content, str):
        return content
    given = mappings_of(content, f"{field}.content")
    parts = [_chat_part(part, f"{field}.content.{position}") for position, part in enumerate(given)]
    if all(part["type"] == "text" for part in parts):
        # Text alone goes as a string: chat templates of many local models know nothing else.
        return "".join(part["text"] for part in parts)
    return parts


def _chat_part(part: Mapping[str, Any], field: str) -> JsonDict:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_of(part, field)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal") or ""}
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
        if not (part.get("file_data") or part.get("file_id")):
            raise ConversionError(field, "chat completions take a file by its file_data or file_id only")
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
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind is None or (kind == "function" and "function" in choice):
        return choice
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        tools = [_chat_tool_choice(tool) for tool in mappings_of(choice.get("tools"), "tool_choice.tools")]
        return {"type": kind, kind: {"mode": choice.get("mode") or "auto", "tools": tools}}
    raise ConversionError("tool_choice.type", f"chat completions have no tool of type {kind!r}")


def _chat_response_format(text_format: Mapping[str, Any]) -> JsonDict:
    if text_format.get("type") != "json_schema":
        return dict(text_format)
    schema = {key: value for key, value in text_format.items() if key != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}
