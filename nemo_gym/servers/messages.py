"""Shapes of what servers exchange: the bootstrap line, request bodies, error bodies.

Only what a server itself reads is typed; everything else of a row, a request or a response passes through as it
came, so a field that this code has never heard of survives the whole chain.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.servers.json_values import dumps

JsonDict = dict[str, Any]

ROLLOUT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
is_rollout_id = re.compile(ROLLOUT_ID_PATTERN.replace("$", r"\Z")).match

BOOTSTRAP_VERSION = 1


@dataclass(frozen=True)
class Bootstrap:
    """What a server is told at start, once, on stdin: who it is and the configuration that it may see.

    For the registry, ``awaited`` names the servers it waits for, and ``inside`` the URLs of those that only it reaches.
    ``files`` are texts that the settings' ``files`` name on the caller's machine.
    """

    session_id: str
    server_name: str
    config: JsonDict
    session_secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    awaited: tuple[str, ...] = ()
    inside: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_line(cls, line: bytes) -> Bootstrap:
        """Read the one line; a line that is not a bootstrap line is a ``ConfigError`` that quotes no secret."""
        try:
            data = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ConfigError(
                f"needed: one JSON line on stdin with this server's configuration; found {len(line)} bytes that "
                f"are no JSON ({error.msg} at character {error.pos})"
            ) from None
        if not isinstance(data, dict) or data.get("v") != BOOTSTRAP_VERSION:
            found = data.get("v") if isinstance(data, dict) else type(data).__name__
            raise ConfigError(
                f"needed: a configuration line of version {BOOTSTRAP_VERSION} on stdin; found {found!r}. "
                "The image and the nemo_gym that started it are of different versions: build the image again"
            )
        missing = [key for key in ("session_id", "server_name", "config", "session_secret") if key not in data]
        if missing:
            raise ConfigError(f"the configuration line on stdin lacks {', '.join(missing)}")
        return cls(
            session_id=str(data["session_id"]),
            server_name=str(data["server_name"]),
            config=data["config"],
            session_secret=str(data["session_secret"]),
            token=data.get("token"),
            awaited=tuple(data.get("awaited") or ()),
            inside=dict(data.get("inside") or {}),
            files=dict(data.get("files") or {}),
        )


class ServerRef(BaseModel):
    """A reference from one server's settings to another server."""

    model_config = ConfigDict(frozen=True)

    type: str
    name: str


def _checked_input(params: JsonDict) -> JsonDict:
    value = params.get("input")
    if isinstance(value, str):
        return params
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return params
    if value is None:
        raise ValueError("it has no input; needed: a string or a list of items")
    raise ValueError("its input is neither a string nor a list of objects")


def _checked_output(response: JsonDict) -> JsonDict:
    output = response.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise ValueError("it has no output; needed: a list of items")
    return response


ResponsesParams = Annotated[JsonDict, AfterValidator(_checked_input)]
"""A Responses API request as it came: an object whose ``input`` is a string or a list of items."""

Response = Annotated[JsonDict, AfterValidator(_checked_output)]
"""A Responses API response as it came: an object whose ``output`` is a list of items."""


class RunRequest(BaseModel):
    """A row as ``/run`` and ``/seed_session`` get it. Subclass it to name the fields that a server needs."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: ResponsesParams


class VerifyRequest(RunRequest):
    """A row and the model's response to it. Subclass it to name the fields that a verifier needs."""

    response: Response

    def text(self) -> str:
        """What the model said to the user, without its reasoning."""
        return output_text(self.response)


class AggregateRequest(BaseModel):
    """The replies of ``/verify`` that metrics are wanted for."""

    model_config = ConfigDict(extra="allow")

    verify_responses: list[JsonDict]


def output_text(response: Mapping[str, Any]) -> str:
    """The text of all the assistant's messages in a response, in order, one per line.

    Reasoning is left out: items of type ``reasoning``, and a ``<think>`` block that an endpoint without a
    reasoning parser leaves in the text (also one whose opening tag the chat template had already written).
    """
    texts = []
    for item in response.get("output") or ():
        if item.get("type", "message") != "message" or item.get("role", "assistant") != "assistant":
            continue
        content = item.get("content")
        if isinstance(content, str):
            texts.append(without_thinking(content))
            continue
        parts = [p.get("text") or "" for p in content or () if isinstance(p, dict) and p.get("type") in _TEXT_PARTS]
        texts.append(without_thinking("".join(parts)))
    return "\n".join(texts)


_TEXT_PARTS = ("output_text", "text")


def without_thinking(text: str) -> str:
    """The text after its last ``</think>``; nothing when a ``<think>`` never ends."""
    _, closing, tail = text.rpartition("</think>")
    visible = tail if closing else text
    opened = visible.find("<think>")
    return visible if opened < 0 else visible[:opened]


def text_message(text: str, *, item_id: str | None = None, status: str = "completed") -> JsonDict:
    """An assistant message item with one text part."""
    return {
        "id": item_id or new_id("msg"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def new_id(prefix: str) -> str:
    """A fresh identifier such as ``resp_0f3a...``."""
    return f"{prefix}_{uuid.uuid4().hex}"


class IncompleteAnswerError(ValueError):
    """An answer of a model endpoint that is not what the API promises, in a way that no default can mend."""


def filled_response(response: JsonDict, params: Mapping[str, Any], *, model: str) -> JsonDict:
    """The response with the fields that the Responses API promises and servers in the field leave out.

    Changes the dict it is given, and returns it. Raises ``IncompleteAnswerError`` for one that is no answer.
    """
    output = response.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise IncompleteAnswerError("it has no list of output items")
    if response.get("status") in _NO_ANSWER:
        raise IncompleteAnswerError(f"its status is {response['status']}")
    if not response.get("id"):
        response["id"] = new_id("resp")
    if response.get("created_at") is None:
        response["created_at"] = time.time()
    if not response.get("model"):
        response["model"] = model
    if not response.get("status"):
        response["status"] = "completed"
    response["object"] = "response"
    for key, default in _RESPONSE_DEFAULTS:
        if response.get(key) is None:
            echoed = params.get(key)
            response[key] = default if echoed is None else echoed
    response.setdefault("error", None)
    response.setdefault("incomplete_details", None)
    for item in output:
        _fill_output_item(item)
    if response.get("usage") is not None:
        response["usage"] = filled_usage(response["usage"]) if isinstance(response["usage"], Mapping) else None
    return response


_NO_ANSWER = ("failed", "cancelled", "queued", "in_progress")

_RESPONSE_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("parallel_tool_calls", True),
    ("tool_choice", "auto"),
    ("tools", []),
)


def _fill_output_item(item: JsonDict) -> None:
    if not isinstance(item.get("type"), str):
        item["type"] = "message"
    kind = item["type"]
    if kind == "message":
        item.setdefault("role", "assistant")
        item.setdefault("status", "completed")
        item["content"] = _filled_content(item.get("content"))
        if not item.get("id"):
            item["id"] = new_id("msg")
    elif kind == "function_call":
        if not isinstance(item.get("name"), str):
            raise IncompleteAnswerError("it has a function call without a name")
        item.setdefault("status", "completed")
        if not item.get("call_id"):
            item["call_id"] = item.get("id") or new_id("call")
        item["arguments"] = arguments_text(item.get("arguments"))
    elif kind == "reasoning":
        summary = item.get("summary")
        if isinstance(summary, str):
            item["summary"] = [{"type": "summary_text", "text": summary}]
        elif not isinstance(summary, list):
            item["summary"] = []
        if not item.get("id"):
            item["id"] = new_id("rs")


def _filled_content(content: Any) -> list[JsonDict]:
    """A message's parts, each with what the API promises of its type."""
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content}]
    elif content is None:
        content = []
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise IncompleteAnswerError("it has a message whose content is neither a text nor a list of parts")
    for part in content:
        if part.get("type", "output_text") in _TEXT_PARTS:
            part["type"] = "output_text"
            part.setdefault("annotations", [])
            part["text"] = text_in(part, "text")
    return content


def text_in(part: Mapping[str, Any], key: str) -> str:
    """The text of a content part; empty where there is none."""
    text = part.get(key)
    if text is not None and not isinstance(text, str):
        raise IncompleteAnswerError(f"the {key} of a part of its message is no text")
    return text or ""


def arguments_text(arguments: Any) -> str:
    """The arguments of a tool call as the text that the APIs promise; servers also send an object, or nothing."""
    if isinstance(arguments, str):
        return arguments
    return "{}" if arguments is None else dumps(arguments).decode()


def filled_usage(usage: Mapping[str, Any]) -> JsonDict:
    """Usage with both details and a total, whatever part of it the endpoint told."""
    filled = dict(usage)
    tokens_in = _count(filled, "input_tokens")
    tokens_out = _count(filled, "output_tokens")
    if not isinstance(filled.get("total_tokens"), int):
        filled["total_tokens"] = tokens_in + tokens_out
    for key, name in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
        details = dict(filled[key]) if isinstance(filled.get(key), Mapping) else {}
        _count(details, name)
        filled[key] = details
    return filled


def summed_usage(total: Mapping[str, Any] | None, step: Mapping[str, Any] | None) -> JsonDict | None:
    """The sum of two usages, details included; None when there is neither."""
    if not step:
        return dict(total) if total else None
    if not total:
        return dict(step)
    summed = dict(total)
    for key, value in step.items():
        have = summed.get(key)
        if isinstance(value, Mapping):
            summed[key] = summed_usage(have, value) if isinstance(have, Mapping) else dict(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            summed[key] = have + value if isinstance(have, (int, float)) else value
        elif key not in summed:
            summed[key] = value
    return summed


def _count(mapping: JsonDict, key: str) -> int:
    value = mapping.get(key)
    if not isinstance(value, int):
        mapping[key] = value = int(value) if isinstance(value, float) and value.is_integer() else 0
    return value


def error_body(kind: str, message: str, details: Mapping[str, Any] | None = None) -> bytes:
    """The JSON body of an error: ``{"error": {"type", "message", ...}}``, as OpenAI clients read it."""
    return orjson.dumps({"error": {"type": kind, "message": message, **(details or {})}}, default=str)


def error_message_in(body: bytes) -> str:
    """The sentence in an error body, whatever its shape; else the body's end."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return text[-_TAIL_CHARS:] or "(an empty body)"
    for key in ("error", "message", "detail"):
        inner = value.get(key) if isinstance(value, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            return str(inner["message"])
        if isinstance(inner, str) and inner:
            return inner
    return text[-_TAIL_CHARS:]


_TAIL_CHARS = 2000


def validation_error_body(problems: Sequence[Mapping[str, Any]]) -> bytes:
    """The body of a 422: one sentence that names each field, and the list of problems in ``detail``."""
    detail = [{"loc": ["body", *p["loc"]], "msg": p["msg"], "type": p["type"]} for p in problems]
    sentence = "; ".join(f"{_path(d['loc'][1:]) or 'body'}: {d['msg']}" for d in detail)
    return orjson.dumps({"error": {"type": "invalid_request", "message": sentence}, "detail": detail}, default=str)


def problems_of(error: ValidationError) -> list[Mapping[str, Any]]:
    """The problems that pydantic found, without the values that caused them (they may be large or secret)."""
    return cast("list[Mapping[str, Any]]", error.errors(include_url=False, include_context=False, include_input=False))


def settings_error(server_name: str, error: ValidationError) -> ConfigError:
    """The ``ConfigError`` for settings that a server cannot run with."""
    problems = [f"{_path(p['loc']) or 'the settings'}: {p['msg']}" for p in problems_of(error)]
    return ConfigError(f"the settings of server {server_name} cannot be used: " + "; ".join(problems))


def _path(loc: Iterable[Any]) -> str:
    return ".".join(str(part) for part in loc)
