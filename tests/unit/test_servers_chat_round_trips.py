"""Whatever a conversation holds survives Responses API -> chat completions -> Responses API, and the way round."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.servers.chat import chat_messages, chat_request
from nemo_gym.servers.chat_answers import filled_completion, response_of_chat, response_usage
from nemo_gym.servers.messages import IncompleteAnswerError, filled_response, output_text

Json = dict[str, Any]

texts = st.text(min_size=1, max_size=30)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,20}", fullmatch=True)
counts = st.integers(0, 10**9)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.builds(lambda value: f"{{{value}}}", st.text(max_size=20)) | st.just("{}")
calls = st.builds(
    lambda call_id, name, text: {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}},
    texts, names, arguments,
)  # fmt: skip


@st.composite
def assistant_messages(draw: st.DrawFn) -> Json:
    """What a model may answer in one turn."""
    tool_calls = draw(st.lists(calls, max_size=3))
    refusal = None if tool_calls else draw(st.none() | texts)
    content: Any = draw(texts if not (tool_calls or refusal) else st.none() | texts)
    if refusal:
        content = [{"type": "refusal", "refusal": refusal}]
    message: Json = {"role": "assistant", "content": content}
    if reasoning := draw(st.none() | texts):
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": tool_calls} if tool_calls else message


@given(assistant_messages(), st.sampled_from(["stop", "tool_calls", "length", "content_filter", None]))
def test_an_answer_comes_back_as_the_message_that_it_was(message: Json, finish: str | None) -> None:
    finish = finish if finish != "tool_calls" or message.get("tool_calls") else "stop"
    completion = {"choices": [{"message": message, "finish_reason": finish}]}
    response = response_of_chat(completion, {}, model="m")
    assert chat_messages(None, response["output"]) == [message]
    assert response["status"] == ("incomplete" if finish in ("length", "content_filter") else "completed")


@given(assistant_messages(), st.sampled_from(["reasoning", "reasoning_content"]))
def test_and_in_the_endpoints_own_word_for_reasoning(message: Json, word: str) -> None:
    asked = dict(message)
    if "reasoning_content" in asked:
        asked[word] = asked.pop("reasoning_content")
    output = response_of_chat({"choices": [{"message": asked}]}, {}, model="m")["output"]
    assert chat_messages(None, output, reasoning_field=word) == [asked]
    without = chat_messages(None, output, reasoning_field=None)
    assert without == [{key: value for key, value in asked.items() if key != word}]


@st.composite
def turns(draw: st.DrawFn) -> list[Json]:
    """A user's message with text and images, an answer, and a result for each call in it."""
    image = st.fixed_dictionaries(
        {"type": st.just("input_image"), "image_url": st.sampled_from(["data:image/png;base64,AA==", "https://h/x"])},
        optional={"detail": st.sampled_from(["low", "high", "auto"])},
    )
    text = st.fixed_dictionaries({"type": st.just("input_text"), "text": texts})
    asked = {"type": "message", "role": "user", "content": [*draw(st.lists(image | text, max_size=3)), draw(image)]}
    answer = draw(assistant_messages())
    output = response_of_chat({"choices": [{"message": answer}]}, {}, model="m")["output"]
    results = [
        {"type": "function_call_output", "call_id": call["id"], "output": draw(st.text(max_size=20))}
        for call in answer.get("tool_calls", ())
    ]
    return [asked, *output, *results]


@given(st.lists(turns(), min_size=1, max_size=3))
def test_nothing_of_a_conversation_is_lost_on_the_way(conversation: list[list[Json]]) -> None:
    items = [item for turn in conversation for item in turn]
    assert items_of(chat_messages(None, items)) == [plain(item) for item in items]


def items_of(messages: list[Json]) -> list[Json]:
    """Chat messages read back, by their documented shapes alone."""
    items: list[Json] = []
    for message in messages:
        if message["role"] == "user":
            items.append({"role": "user", "content": [input_part(part) for part in message["content"]]})
        elif message["role"] == "tool":
            items.append({"call_id": message["tool_call_id"], "output": message["content"]})
        else:
            if "reasoning_content" in message:
                items.append({"reasoning": message["reasoning_content"]})
            if message["content"] is not None:
                items.append({"said": message["content"]})
            functions = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
            items += [{"call": (i, f["name"], f["arguments"])} for i, f in functions]
    return items


def input_part(part: Json) -> Json:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    image = part["image_url"]
    detail = {"detail": image["detail"]} if "detail" in image else {}
    return {"type": "input_image", "image_url": image["url"], **detail}


def plain(item: Json) -> Json:
    """What an item says, without its id and status."""
    kind = item["type"]
    if kind == "reasoning":
        return {"reasoning": item["summary"][0]["text"]}
    if kind == "function_call":
        return {"call": (item["call_id"], item["name"], item["arguments"])}
    if kind == "function_call_output":
        return {"call_id": item["call_id"], "output": item["output"]}
    if item["role"] == "user":
        return {"role": "user", "content": item["content"]}
    if item["content"][0]["type"] == "refusal":
        return {"said": item["content"]}
    return {"said": "".join(part["text"] for part in item["content"])}


@given(
    st.fixed_dictionaries(
        {"name": names, "parameters": st.dictionaries(names, json_values, max_size=3)},
        optional={"description": texts, "strict": st.booleans()},
    )
)
def test_a_tool_keeps_its_whole_definition(function: Json) -> None:
    (tool,) = chat_request({"input": "x", "tools": [{"type": "function", **function}]})["tools"]
    assert tool == {"type": "function", "function": function}


usages = st.fixed_dictionaries(
    {"prompt_tokens": counts, "completion_tokens": counts, "total_tokens": counts},
    optional={
        "prompt_tokens_details": st.dictionaries(st.sampled_from(["cached_tokens", "audio_tokens"]), counts),
        "completion_tokens_details": st.dictionaries(st.sampled_from(["reasoning_tokens", "audio_tokens"]), counts),
        "cost": counts,
    },
)


@given(usages)
def test_usage_keeps_every_count(usage: Json) -> None:
    response = response_usage(usage)
    assert response["input_tokens"] == usage["prompt_tokens"]
    assert response["output_tokens"] == usage["completion_tokens"]
    assert response["total_tokens"] == usage["total_tokens"]
    assert response.get("cost") == usage.get("cost")
    for theirs, ours, name in (
        ("prompt_tokens_details", "input_tokens_details", "cached_tokens"),
        ("completion_tokens_details", "output_tokens_details", "reasoning_tokens"),
    ):
        assert response[ours] == {name: 0, **usage.get(theirs, {})}


@given(texts, st.text(max_size=30))
def test_text_is_not_touched(text: str, after: str) -> None:
    response = response_of_chat({"choices": [{"message": {"content": text + after}}]}, {}, model="m")
    assert response["output"][0]["content"][0]["text"] == text + after
    if "think>" not in text + after:
        assert output_text(response) == text + after


COMPLETION: Json = {
    "id": "c", "created": 1, "model": "m", "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
    "choices": [{
        "index": 0, "finish_reason": "stop", "logprobs": {"content": [{"token": "x"}]},
        "message": {
            "role": "assistant", "content": [{"type": "text", "text": "x"}], "refusal": "no", "reasoning": "hm",
            "annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}],
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
    }],
}  # fmt: skip
RESPONSE: Json = {
    "id": "r", "created_at": 1, "status": "completed", "tools": [], "error": None,
    "usage": {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": None},
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    ],
}  # fmt: skip


@st.composite
def broken(draw: st.DrawFn, sound: Json) -> Json:
    """``sound`` with anything that JSON can hold in some of its places, or with nothing there."""

    def copy(node: Any, chance: int) -> Any:
        if chance and draw(st.integers(0, 9)) == 0:
            return draw(json_values | st.lists(json_values, max_size=2))
        if isinstance(node, dict):
            return {key: copy(value, 1) for key, value in node.items() if draw(st.integers(0, 9))}
        return [copy(value, 1) for value in node] if isinstance(node, list) else node

    made: Json = copy(sound, 0)
    return made


@given(broken(COMPLETION))
def test_a_broken_completion_is_an_answer_or_an_error_that_says_so(completion: Json) -> None:
    for read in (lambda body: response_of_chat(body, {}, model="m"), lambda body: filled_completion(body, model="m")):
        with suppress(IncompleteAnswerError):
            assert read(completion)["object"] in ("response", "chat.completion")


@given(broken(RESPONSE))
def test_and_so_is_a_broken_response(response: Json) -> None:
    with suppress(IncompleteAnswerError):
        filled = filled_response(response, {}, model="m")
        assert isinstance(output_text(filled), str)
        assert all(isinstance(item["arguments"], str) for item in filled["output"] if item["type"] == "function_call")
