"""``llama_cpp_model`` as a process, with the real model in it."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import openai
import pytest

from images.responses_api_models.llama_cpp_model.app import LlamaCppModel
from nemo_gym.servers.chat import chat_messages
from nemo_gym.servers.testing import bootstrap_for
from tests.interop.tools import ROOT, python, running, with_packages

APP = ROOT / "images" / "responses_api_models" / "llama_cpp_model" / "app.py"
WEATHER: Any = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The server as its image runs it: told its settings on stdin."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    told = bootstrap_for(LlamaCppModel, {"host": "127.0.0.1", "port": port, "workers": 1, "context_size": 2048})
    line = {"v": 1, **{name: getattr(told, name) for name in ("session_id", "server_name", "config", "session_secret")}}
    with running(
        python(str(APP)), says="workers have loaded", env=with_packages(), told=json.dumps(line).encode() + b"\n"
    ):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def client(address: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as made:
        yield made


async def test_it_is_ready_and_answers_alike_in_both_apis(address: str, client: openai.AsyncOpenAI) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{address}/ready") as reply:
        assert reply.status == 200
    response = await client.responses.create(model="any", input="Name a colour.", max_output_tokens=12)
    completion = await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Name a colour."}], max_tokens=12
    )
    assert response.output_text
    assert response.output_text == completion.choices[0].message.content
    assert response.model == completion.model == "SmolLM2-135M-Instruct"
    assert response.usage is not None
    assert completion.usage is not None
    assert response.usage.input_tokens == completion.usage.prompt_tokens


async def test_the_model_is_shown_the_tools(client: openai.AsyncOpenAI) -> None:
    """One with tools has a longer prompt; a weak model need not call any."""
    asked = {"model": "any", "input": "Weather in Oslo?", "max_output_tokens": 16}
    tools: Any = [{"type": "function", "strict": False, **WEATHER}]
    without = await client.responses.create(**asked)
    shown = await client.responses.create(**asked, tools=tools)
    assert shown.usage is not None
    assert without.usage is not None
    assert shown.usage.input_tokens > without.usage.input_tokens + 50
    assert {item.type for item in shown.output} <= {"message", "function_call"}


async def test_a_call_of_a_tool_arrives_as_one_on_both_apis(client: openai.AsyncOpenAI) -> None:
    """With calls to go by, even a weak model makes one more."""
    turns: list[Any] = []
    for city in ("Rome", "Lima", "Cairo"):
        arguments = json.dumps({"city": city})
        turns += [
            {"role": "user", "content": f"Weather in {city}?"},
            {"type": "function_call", "call_id": city, "name": "get_weather", "arguments": arguments},
            {"type": "function_call_output", "call_id": city, "output": "sun"},
        ]
    turns.append({"role": "user", "content": "Weather in Oslo?"})
    tools: Any = [{"type": "function", "strict": False, **WEATHER}]
    response = await client.responses.create(model="any", input=turns, tools=tools, max_output_tokens=40)
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    assert call.call_id

    messages: list[Any] = chat_messages(None, turns)
    completion = await client.chat.completions.create(
        model="any", messages=messages, tools=[{"type": "function", "function": WEATHER}], max_tokens=40
    )
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    (made,) = choice.message.tool_calls or ()
    assert made.type == "function"
    assert (made.function.name, json.loads(made.function.arguments)) == ("get_weather", {"city": "Oslo"})


async def test_what_is_too_long_is_a_bad_request(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="context"):
        await client.responses.create(model="any", input="word " * 5000)
