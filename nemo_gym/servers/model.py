"""Model servers: the Responses API and chat completions, in front of whatever answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from nemo_gym.servers.base import BodyParser, Handler, InvalidRequestError, Route, Server, decode, encode, json_response
from nemo_gym.servers.messages import JsonDict, ResponsesParams
from nemo_gym.servers.records import note_answer


class ModelServer(Server):
    """Base of every model server. A subclass answers both kinds of request with bodies of the same kind."""

    server_type = "responses_api_models"

    async def responses(self, params: JsonDict) -> JsonDict | bytes:
        """Answer a Responses API request."""
        raise RuntimeError(f"{type(self).__name__} has no responses method")

    async def chat_completions(self, params: JsonDict) -> JsonDict | bytes:
        """Answer a chat completions request."""
        raise RuntimeError(f"{type(self).__name__} has no chat_completions method")

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/v1/responses", self._route(self.responses, BodyParser(ResponsesParams))),
            Route("POST", "/v1/chat/completions", self._route(self.chat_completions, _checked_chat)),
        ]

    def _route(
        self, method: Callable[[JsonDict], Awaitable[JsonDict | bytes]], parse: Callable[[object], JsonDict]
    ) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            params = parse(decode(await request.read()))
            if params.get("stream"):
                raise InvalidRequestError.of_field("stream", "streaming is not offered; leave it out")
            answer = await method(params)
            note_answer(answer)
            # Some endpoints repeat the request's headers, the key among them.
            return json_response(self.redact.answer(encode(answer)))

        return handle


def _checked_chat(body: object) -> JsonDict:
    if not isinstance(body, dict):
        raise InvalidRequestError([{"loc": [], "msg": "the body is no object", "type": "dict_type"}])
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise InvalidRequestError.of_field("messages", "needed: a list of messages that is not empty")
    return body
