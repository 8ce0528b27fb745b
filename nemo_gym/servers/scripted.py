"""A model that answers from a script: fixed answers, rules, delays, errors and tool calls. Values only, no I/O.

::

    Script(
        rules=(
            Rule(contains="capital of France", reply=Reply(text="Paris")),
            Rule(regex=r"\\d+ \\+ \\d+", reply=Reply(tool_calls=(ToolCall(name="add", arguments={"a": 1, "b": 2}),))),
            Rule(reply=Reply(status=503, error="busy"), times=1),
        ),
        otherwise=Reply(text="A"),
    )

The first rule that fits answers. A rule is compared with the text that the model was last told: the user's last
message, or the results of the tools that it called.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DEFAULT_TEXT = "This is a scripted answer."


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolCall(_Frozen):
    """A call that the model makes. ``arguments`` as a text goes out as it stands, so that it may be malformed."""

    name: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] | str = Field(default_factory=dict)

    def arguments_text(self) -> str:
        """The arguments as the wire has them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class Reply(_Frozen):
    """One answer, ``delay_s`` seconds after it was asked for; with a ``status`` of 400 or more an error."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    status: Annotated[int, Field(ge=200, le=599)] = 200
    error: str = "This error is part of the script."
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_an_answer_or_an_error(self) -> Self:
        if self.status != 200 and self.status < 400:
            raise ValueError(f"status must be 200, or 400 to 599 for an error; found {self.status}")
        own = sorted(name for name in self.headers if name.lower() in ("content-type", "content-length"))
        if own:
            raise ValueError(f"the endpoint sets {own[0]} itself")
        if self.status != 200 and (self.text or self.reasoning or self.tool_calls):
            raise ValueError(
                f"a reply with status {self.status} is an error, which has no text, reasoning or tool_calls"
            )
        return self

    @property
    def is_error(self) -> bool:
        return self.status != 200


class Rule(_Frozen):
    """When ``reply`` is given: for texts that hold ``contains``, or that ``regex`` is found in; without both, for all.

    ``times``: how often at most; None for always.
    """

    reply: Reply
    contains: str | None = None
    regex: str | None = None
    times: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if self.contains is not None and self.regex is not None:
            raise ValueError("a rule has contains or regex, not both")
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise ValueError(f"{self.regex!r} is no regular expression: {error}") from None
        return self

    def fits(self, text: str) -> bool:
        """Whether the rule is for what the model was told last."""
        if self.contains is not None:
            return self.contains in text
        return self.regex is None or re.search(self.regex, text) is not None


class Script(_Frozen):
    """What a scripted model does: the first rule that fits and is not used up, else ``otherwise``."""

    rules: tuple[Rule, ...] = ()
    otherwise: Reply = Reply(text=DEFAULT_TEXT)

    @classmethod
    def answering(cls, text: str) -> Self:
        """The same answer to everything."""
        return cls(otherwise=Reply(text=text))


class Asked(_Frozen):
    """A request that the endpoint got: where, the text that rules were compared with, and the whole body."""

    path: str
    text: str
    body: dict[str, Any]
    status: int


class ScriptedModel:
    """A script in use: which rules are used up, and the latest ``most_kept`` requests."""

    def __init__(self, script: Script, *, most_kept: int = 1000) -> None:
        self._asked: deque[Asked] = deque(maxlen=most_kept)
        self.load(script)

    def load(self, script: Script) -> None:
        """Follow this script from now on; what was asked so far is forgotten."""
        self.script = script
        self._used = [0] * len(script.rules)
        self._asked.clear()

    @property
    def asked(self) -> list[Asked]:
        return list(self._asked)

    def answer(self, path: str, body: Mapping[str, Any]) -> Reply:
        """The reply to a request of the Responses API or of chat completions, told apart by its path."""
        text = last_text(body)
        reply = self._reply_to(text)
        self._asked.append(Asked(path=path, text=text, body=dict(body), status=reply.status))
        return reply

    def _reply_to(self, text: str) -> Reply:
        for number, rule in enumerate(self.script.rules):
            if rule.fits(text) and (rule.times is None or self._used[number] < rule.times):
                self._used[number] += 1
                return rule.reply
        return self.script.otherwise


def last_text(body: Mapping[str, Any]) -> str:
    """What the model was told last: the last user's message, or the results of tools that stand after it."""
    given = body.get("input", body.get("messages"))
    if isinstance(given, str):
        return given
    told: list[str] = []
    for item in reversed(given if isinstance(given, list) else []):
        if not isinstance(item, Mapping):
            continue
        is_result = item.get("type") == "function_call_output" or item.get("role") == "tool"
        if is_result:
            told.insert(0, _text_of(item.get("output", item.get("content"))))
        elif item.get("role") == "user":
            return "\n".join(told) if told else _text_of(item.get("content"))
        elif told:
            break
    return "\n".join(told)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(_texts(content))


def _texts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else []:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            yield part["text"]


# -- the bodies of both endpoints ----------------------------------------------------------------------------------


def response_body(reply: Reply, model: str, number: int) -> dict[str, Any]:
    """A reply as a Response of the Responses API. ``number`` makes its ids its own."""
    output: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        output.append({"id": f"rs_{number}", "type": "reasoning", "summary": summary})
    if reply.text or not reply.tool_calls:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        output.append(
            {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": content}
        )
    for index, call in enumerate(reply.tool_calls):
        called = {"call_id": f"call_{number}_{index}", "name": call.name, "arguments": call.arguments_text()}
        output.append({"id": f"fc_{number}_{index}", "type": "function_call", "status": "completed", **called})
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        },
    }


def completion_body(reply: Reply, model: str, number: int) -> dict[str, Any]:
    """A reply as a chat completion. ``number`` makes its ids its own."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text if not reply.tool_calls or reply.text else None,
    }
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text()},
            }
            for index, call in enumerate(reply.tool_calls)
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if reply.tool_calls else "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as both endpoints give it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
