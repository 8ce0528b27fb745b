"""A model server that forwards to any OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nemo_gym.servers.base import Readiness
from nemo_gym.servers.forwarding import Forwarder, ForwardingSettings
from nemo_gym.servers.messages import JsonDict
from nemo_gym.servers.model import ModelServer
from nemo_gym.servers.process import run_server


class OpenAIModel(ModelServer):
    """Sends each request to the endpoint with the configured model name and key."""

    settings: ForwardingSettings

    async def running(self) -> AsyncIterator[None]:
        self._forwarder = Forwarder(self.settings)
        yield
        await self._forwarder.close()

    async def readiness(self) -> Readiness:
        return await self._forwarder.probe()

    async def responses(self, params: JsonDict) -> JsonDict:
        return await self._forwarder.responses(params)

    async def chat_completions(self, params: JsonDict) -> JsonDict:
        return await self._forwarder.chat_completions(params)


if __name__ == "__main__":
    raise SystemExit(run_server(OpenAIModel))
