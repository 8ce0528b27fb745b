"""Clients that others wrote, calling our model servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from images.responses_api_models.replay_model.app import ReplayModel
from nemo_gym.servers.testing import Running, serving
from tests.interop.ours import APIS, openai_model

FUNCTION: Any = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CITIES = [{"city": "Paris"}, {"city": "Oslo"}]


@asynccontextmanager
async def openai_client(model: Running[Any]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@asynccontextmanager
async def anthropic_client(model: Running[Any]) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=model.url, api_key="any", max_retries=0) as client:
        yield client


def cities(arguments: list[str]) -> list[Any]:
    import json

    return [json.loads(text) for text in arguments]


@pytest.mark.parametrize("api", APIS)
class TestOpenAI:
    async def test_responses(self, aimock: str, api: str) -> None:
        async with openai_model(aimock, api=api) as model, openai_client(model) as client:
            hello = await client.responses.create(model="any", input="Say hello")
            tools: Any = [{"type": "function", "strict": False, **FUNCTION}]
            calls = await client.responses.create(model="any", input="Weather in two cities", tools=tools)
            thought = await client.responses.create(model="any", input="Think first")
        assert (hello.output_text, hello.status, hello.model) == ("Hello!", "completed", "o3")
        assert hello.usage is not None
        assert (hello.usage.total_tokens, hello.usage.output_tokens_details.reasoning_tokens) == (9, 0)
        functions = [item for item in calls.output if item.type == "function_call"]
        assert [item.call_id for item in functions] == ["call_paris", "call_oslo"]
        assert cities([item.arguments for item in functions]) == CITIES
        assert calls.output_text == "I look both up."
        assert [item.type for item in thought.output] == ["reasoning", "message"]

    async def test_chat_completions(self, aimock: str, api: str) -> None:
        async with openai_model(aimock, api=api) as model, openai_client(model) as client:
            ask: Callable[[str], list[Any]] = lambda text: [{"role": "user", "content": text}]  # noqa: E731
            hello = await client.chat.completions.create(model="any", messages=ask("Say hello"))
            tools: Any = [{"type": "function", "function": FUNCTION}]
            calls = await client.chat.completions.create(
                model="any", messages=ask("Weather in two cities"), tools=tools
            )
        assert hello.choices[0].message.content == "Hello!"
        assert hello.usage is not None
        assert hello.usage.total_tokens == 9
        choice = calls.choices[0]
        assert choice.finish_reason == "tool_calls"
        functions = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
        assert cities([function.arguments for function in functions]) == CITIES

    async def test_structured_outputs_are_parsed(self, aimock: str, api: str) -> None:
        import pydantic

        class City(pydantic.BaseModel):
            name: str

        async with openai_model(aimock, api=api) as model, openai_client(model) as client:
            parsed = await client.responses.parse(model="any", input=f"A city as JSON by {api}", text_format=City)
        assert parsed.output_parsed == City(name="Oslo")

    async def test_errors_are_the_clients_exceptions(self, aimock: str, api: str) -> None:
        async with openai_model(aimock, api=api, retry={"attempts": 1}) as model, openai_client(model) as client:
            with pytest.raises(openai.BadRequestError, match="This request is too long for the model"):
                await client.responses.create(model="any", input="Too much")
            with pytest.raises(openai.RateLimitError, match="The quota is used up"):
                await client.responses.create(model="any", input="Always busy")
            with pytest.raises(openai.InternalServerError, match="no fixture matched"):
                await client.responses.create(model="any", input="Nobody expects this")
            with pytest.raises(openai.UnprocessableEntityError, match="input"):
                await client.responses.create(model="any")
            with pytest.raises(openai.UnprocessableEntityError, match="streaming is not offered"):
                await client.responses.create(model="any", input="Say hello", stream=True)
            with pytest.raises(openai.NotFoundError, match="no route"):
                await client.models.list()


async def test_a_refused_key_is_an_authentication_error() -> None:
    from aiohttp import web

    from nemo_gym.servers.testing import serving_app

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "Incorrect API key provided"}}, status=401)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", refuse)
    async with serving_app(app) as url, openai_model(url) as model, openai_client(model) as client:
        with pytest.raises(openai.AuthenticationError, match="openai_api_key"):
            await client.responses.create(model="any", input="x")


async def test_what_the_client_got_from_a_recording_server_it_gets_from_a_replaying_one(aimock: str) -> None:
    async def ask(client: openai.AsyncOpenAI) -> list[Any]:
        response = await client.responses.create(model="any", input="Think first", temperature=0)
        completion = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Say hello"}]
        )
        return [response.to_dict(), completion.to_dict()]

    settings = {"mode": "record", "openai_base_url": aimock, "openai_model": "o3"}
    async with serving(ReplayModel, settings) as model, openai_client(model) as client:
        first = await ask(client)
        recordings = (await model.get("/recordings")).body
    async with serving(ReplayModel, {}) as model, openai_client(model) as client:
        await model.post("/recordings", recordings)
        assert await ask(client) == first
        with pytest.raises(openai.BadRequestError, match="has another temperature"):
            await client.responses.create(model="any", input="Think first", temperature=1)


@pytest.mark.parametrize("api", APIS)
class TestAnthropic:
    async def test_a_conversation_with_tools(self, aimock: str, api: str) -> None:
        asked: list[Any] = [{"role": "user", "content": "Weather in two cities"}]
        tools: Any = [
            {"name": "get_weather", "input_schema": FUNCTION["parameters"]},
            {"name": "pack", "input_schema": {"type": "object"}},
        ]
        async with openai_model(aimock, api=api) as model, anthropic_client(model) as client:
            first = await client.messages.create(model="any", max_tokens=50, messages=asked, tools=tools)
            calls = [block for block in first.content if block.type == "tool_use"]
            results: list[Any] = [
                {"type": "tool_result", "tool_use_id": call.id, "content": weather}
                for call, weather in zip(calls, ("sun", "snow"), strict=True)
            ]
            asked += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
            second = await client.messages.create(model="any", max_tokens=50, messages=asked, tools=tools)
        assert (first.stop_reason, [block.type for block in first.content]) == (
            "tool_use",
            ["text", "tool_use", "tool_use"],
        )
        assert [call.input for call in calls] == CITIES
        (pack,) = second.content
        assert (pack.type, getattr(pack, "name", None)) == ("tool_use", "pack")

    async def test_answers_thinking_and_usage(self, aimock: str, api: str) -> None:
        async with openai_model(aimock, api=api) as model, anthropic_client(model) as client:
            hello = await client.messages.create(
                model="any", max_tokens=50, system="Be brief.", messages=[{"role": "user", "content": "Say hello"}]
            )
            thought = await client.messages.create(
                model="any",
                max_tokens=2000,
                messages=[{"role": "user", "content": "Think first"}],
                thinking={"type": "enabled", "budget_tokens": 1024},
            )
        assert (hello.content[0].type, hello.stop_reason, hello.model) == ("text", "end_turn", "o3")
        assert (hello.usage.input_tokens, hello.usage.output_tokens) == (7, 2)
        assert [block.type for block in thought.content] == ["thinking", "text"]
        assert getattr(thought.content[0], "thinking", None) == "six times seven"

    async def test_errors_are_the_clients_exceptions(self, aimock: str, api: str) -> None:
        def ask(text: str) -> Any:
            return {"model": "any", "max_tokens": 5, "messages": [{"role": "user", "content": text}]}

        async with openai_model(aimock, api=api, retry={"attempts": 1}) as model, anthropic_client(model) as client:
            with pytest.raises(anthropic.BadRequestError, match="This request is too long for the model"):
                await client.messages.create(**ask("Too much"))
            with pytest.raises(anthropic.RateLimitError, match="rate_limit_error"):
                await client.messages.create(**ask("Always busy"))
            with pytest.raises(anthropic.UnprocessableEntityError, match="messages"):
                await client.messages.create(model="any", max_tokens=5, messages=[])
