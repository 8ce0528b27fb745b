"""A whole resources server: one typed tool, and a verifier."""

from typing import Any

from pydantic import BaseModel

from nemo_gym.servers.messages import VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, tool


class Place(BaseModel):
    city: str


class Weather(ResourcesServer):
    @tool
    async def get_weather(self, place: Place) -> dict[str, str]:
        return {"city": place.city, "forecast": "sunny"}

    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        return {"reward": float("sunny" in row.text().lower())}


if __name__ == "__main__":
    raise SystemExit(run_server(Weather))
