"""Our servers, in this process and with real sockets, in front of an endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel

from images.responses_api_agents.simple_agent.app import SimpleAgent
from images.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.servers.messages import VerifyRequest
from nemo_gym.servers.resources import ResourcesServer, tool
from nemo_gym.servers.testing import Running, serving

APIS = ("responses", "chat_completions")
KEY = "sk-not-to-be-shown-0123456789"


@asynccontextmanager
async def openai_model(endpoint: str, **settings: Any) -> AsyncIterator[Running[OpenAIModel]]:
    """``openai_model`` in front of the endpoint at this base URL."""
    own = {
        "openai_base_url": endpoint,
        "openai_api_key": KEY,
        "openai_model": "o3",
        "retry": {"attempts": 3, "budget_s": 5, "first_wait_s": 0.01},
        **settings,
    }
    async with serving(OpenAIModel, own, name="policy_model") as model:
        yield model


class Place(BaseModel):
    city: str


class Luggage(BaseModel):
    things: list[str]


class Weather(ResourcesServer):
    """Knows the weather of two cities; right is who packed a coat before answering that it snows."""

    @tool
    async def get_weather(self, place: Place) -> str:
        return {"Paris": "sun", "Oslo": "snow"}[place.city]

    @tool
    async def pack(self, luggage: Luggage) -> dict[str, int]:
        return {"packed": len(luggage.things)}

    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        packed = [item for item in row.response["output"] if item.get("name") == "pack" and "coat" in item["arguments"]]
        return {"reward": float(len(packed) == 1 and "snow" in row.text())}


@asynccontextmanager
async def weather_agent(model: Running[OpenAIModel]) -> AsyncIterator[Running[SimpleAgent]]:
    """``simple_agent`` with the weather's tools and ``model``."""
    async with serving(Weather, {}, name="weather") as weather:
        settings = {
            "resources_server": {"type": "resources_servers", "name": "weather"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        config = {**weather.entry(), **model.entry()}
        async with serving(SimpleAgent, settings, name="agent", config=config) as agent:
            yield agent
