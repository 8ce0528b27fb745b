"""The Messages API of Anthropic's clients in terms of the Responses API, both ways. Pure.

What has no counterpart and changes no answer is left out (``cache_control``, a budget for thinking, a tool result's
``is_error``, whose text says so too); what would change one is refused by name. Thinking is asked for as a summary of
the reasoning; its ``signature`` carries the reasoning's encrypted content, where an endpoint gives one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nemo_gym.servers.chat import ConversionError, mapping_of, mappings_of, text_of
from nemo_gym.servers.json_values import dumps, loads
from nemo_gym.servers.messages import JsonDict, arguments_text, new_id

_SAME = ("temperature", "top_p", "top_k", "service_tier", "stream")
_REFUSED = ("mcp_servers", "container", "context_management")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def responses_request(body: Mapping[str, Any]) -> JsonDict:
    """The Responses API request that asks what a Messages request asks. Raises ``ConversionError``."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ConversionError("messages", "needed: a list of messages that is not empty")
    for key in _REFUSED:
        if body.get(key):
            raise ConversionError(key, "this server has no counterpart of it")
    request: JsonDict = {key: body[key] for key in _SAME if body.get(key) is not None}
    request["input"] = [
        item for position, message in enumerate(messages) for item in _items(message, f"messages.{position}")
    ]
    if body.get("system"):
        request["instructions"] = _plain_text(body["system"], "system")
    if body.get("max_tokens") is not None:
        request["max_output_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        request["stop"] = body["stop_sequences"]  # the Responses API has none; endpoints with chat completions do
    if isinstance(body.get("metadata"), Mapping) and body["metadata"].get("user_id"):
        request["user"] = body["metadata"]["user_id"]
    if body.get("tools"):
        tools = mappings_of(body["tools"], "tools")
        request["tools"] = [_tool(tool, f"tools.{position}") for position, tool in enumerate(tools)]
        _add_tool_choice(request, body.get("tool_choice"))
    _add_reasoning_and_format(request, body)
    return request


def _items(message: Mapping[str, Any], field: str) -> list[JsonDict]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise ConversionError(f"{field}.role", f"needed: user or assistant; found {role!r}")
    if isinstance(content, str):
        return [{"type": "message", "role": role, "content": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise ConversionError(f"{field}.content", "needed: a text or a list of blocks")
    items: list[JsonDict] = []
    for position, block in enumerate(content):
        where = f"{field}.content.{position}"
        item = _item(block, where)
        if item is not None:
            items.append(item)
            continue
        # Parts of a message that stand together are one message.
        if not items or items[-1]["type"] != "message":
            items.append({"type": "message", "role": role, "content": []})
        items[-1]["content"].append(_part(block, where, "output_text" if role == "assistant" else "input_text"))
    return items


def _item(block: Mapping[str, Any], field: str) -> JsonDict | None:
    """The item that a block is by itself; None for a part of a message."""
    kind = block.get("type")
    if kind == "tool_use":
        arguments = dumps(block.get("input") or {}).decode()
        return {"type": "function_call", "call_id": block.get("id"), "name": block.get("name"), "arguments": arguments}
    if kind == "tool_result":
        return {
            "type": "function_call_output",
            "call_id": block.get("tool_use_id"),
            "output": _tool_output(block.get("content"), f"{field}.content"),
        }
    if kind == "thinking":
        item: JsonDict = {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": block.get("thinking") or ""}],
        }
        return {**item, "encrypted_content": block["signature"]} if block.get("signature") else item
    if kind == "redacted_thinking":
        return {"type": "reasoning", "summary": [], "encrypted_content": block.get("data")}
    return None


def _tool_output(content: Any, field: str) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ConversionError(field, "needed: a text or a list of blocks")
    parts = [_part(block, f"{field}.{position}", "input_text") for position, block in enumerate(content)]
    if all(part["type"] == "input_text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(block: Any, field: str, text_type: str) -> JsonDict:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        return {"type": text_type, "text": text_of(block, field)}
    source = block.get("source") if kind in ("image", "document") else None
    if isinstance(source, Mapping):
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        if kind == "image" and source.get("type") in ("base64", "url"):
            return {"type": "input_image", "image_url": data if source["type"] == "base64" else source.get("url")}
        if source.get("type") == "base64":
            return {"type": "input_file", "filename": block.get("title") or "document", "file_data": data}
        if source.get("type") == "text":
            return {"type": text_type, "text": source.get("data") or ""}
        if source.get("type") == "url":
            return {"type": "input_file", "file_url": source.get("url")}
        raise ConversionError(f"{field}.source.type", f"this server has no {kind} from {source.get('type')!r}")
    raise ConversionError(f"{field}.type", f"this server has no content of type {kind!r}")


def _plain_text(system: Any, field: str) -> str:
    if isinstance(system, str):
        return system
    if not isinstance(system, list) or not all(isinstance(b, Mapping) and b.get("type") == "text" for b in system):
        raise ConversionError(field, "needed: a text or a list of text blocks")
    return "\n\n".join(text_of(block, field) for block in system)


def _tool(tool: Mapping[str, Any], field: str) -> JsonDict:
    if tool.get("type", "custom") != "custom":
        raise ConversionError(f"{field}.type", f"this server has no tool of type {tool.get('type')!r}")
    made = {"type": "function", "name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description") is not None:
        made["description"] = tool["description"]
    # The Responses API takes a missing `strict` for true, this one for false.
    return {**made, "strict": bool(tool.get("strict"))}


def _add_tool_choice(request: JsonDict, choice: Any) -> None:
    if not choice:
        return
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "tool":
        request["tool_choice"] = {"type": "function", "name": choice.get("name")}
    elif isinstance(kind, str) and kind in _TOOL_CHOICES:
        request["tool_choice"] = _TOOL_CHOICES[kind]
    else:
        raise ConversionError("tool_choice.type", f"needed: auto, any, tool or none; found {kind!r}")
    if choice.get("disable_parallel_tool_use"):
        request["parallel_tool_calls"] = False


def _add_reasoning_and_format(request: JsonDict, body: Mapping[str, Any]) -> None:
    reasoning: JsonDict = {}
    if mapping_of(body.get("thinking"), "thinking").get("type") in ("enabled", "adaptive"):
        reasoning["summary"] = "auto"
    output = mapping_of(body.get("output_config"), "output_config")
    if output.get("effort"):
        reasoning["effort"] = output["effort"]
    if reasoning:
        request["reasoning"] = reasoning
    form = mapping_of(output.get("format"), "output_config.format") or mapping_of(
        body.get("output_format"), "output_format"
    )
    if form:
        schema = {key: value for key, value in form.items() if key != "type"}
        request["text"] = {"format": {"type": form.get("type"), "name": "output", "strict": True, **schema}}


def message_of_response(response: Mapping[str, Any]) -> JsonDict:
    """The Messages API message that says what a (filled) Responses API response says."""
    content: list[JsonDict] = []
    refused = False
    for item in response["output"]:
        kind = item.get("type")
        if kind == "reasoning":
            content += _thinking(item)
        elif kind == "function_call":
            call_id = item.get("call_id") or new_id("toolu")
            content.append(
                {"type": "tool_use", "id": call_id, "name": item.get("name"), "input": _input(item.get("arguments"))}
            )
        elif kind == "message":
            for part in item.get("content") or ():
                refused = refused or part.get("type") == "refusal"
                text = part.get("text") or part.get("refusal")
                if text:
                    content.append({"type": "text", "text": text})
    return {
        "id": response.get("id") or new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": response.get("model") or "",
        "content": content,
        "stop_reason": _stop_reason(response, content, refused),
        "stop_sequence": None,
        "usage": _usage(response.get("usage") or {}),
    }


def _thinking(item: Mapping[str, Any]) -> list[JsonDict]:
    text = "\n".join(part.get("text") or "" for part in item.get("summary") or item.get("content") or ())
    hidden = item.get("encrypted_content")
    if text:
        return [{"type": "thinking", "thinking": text, "signature": hidden or ""}]
    return [{"type": "redacted_thinking", "data": hidden}] if hidden else []


def _input(arguments: Any) -> JsonDict:
    """A call's arguments as the object that they must be here; what is none stands under ``arguments``."""
    try:
        value = loads(arguments_text(arguments).strip().encode() or b"{}")
    except orjson.JSONDecodeError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


def _stop_reason(response: Mapping[str, Any], content: Sequence[Mapping[str, Any]], refused: bool) -> str:
    reason = (response.get("incomplete_details") or {}).get("reason")
    if reason == "max_output_tokens":
        return "max_tokens"
    if refused or reason == "content_filter":
        return "refusal"
    return "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"


def _usage(usage: Mapping[str, Any]) -> JsonDict:
    """Here tokens read from a cache are counted apart from the other input."""
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": max(0, (usage.get("input_tokens") or 0) - cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.get("output_tokens") or 0,
    }


def error_body_of(status: int, message: str) -> JsonDict:
    """An error as this API's clients read it."""
    kind = _ERROR_TYPES.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
