"""Model servers: the Responses API, chat completions and the Messages API, in front of whatever answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from nemo_gym.servers.anthropic_messages import error_body_of, message_of_response, responses_request
from nemo_gym.servers.base import (
    BodyParser,
    Handler,
    InvalidRequestError,
    RequestError,
    Route,
    Server,
    decode,
    encode,
    json_response,
)
from nemo_gym.servers.chat import ConversionError
from nemo_gym.servers.json_values import loads
from nemo_gym.servers.messages import JsonDict, ResponsesParams, error_message_in
from nemo_gym.servers.records import note_answer


class ModelServer(Server):
    """Base of every model server. A subclass answers the first two kinds of request with bodies of the same kind.

    The third, ``/v1/messages``, is answered by way of ``responses``.
    """

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
            Route("POST", "/v1/messages", self._in_its_words(self._route(self.messages, _responses_params))),
        ]

    async def messages(self, params: JsonDict) -> JsonDict | bytes:
        """Answer a Messages API request; ``params`` is the Responses API request that asks the same."""
        answer = await self.responses(params)
        return message_of_response(loads(answer) if isinstance(answer, bytes) else answer)

    def _in_its_words(self, handler: Handler) -> Handler:
        """``handler``, with errors as clients of the Messages API read them."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except RequestError as error:
                body = encode(error_body_of(error.status, error_message_in(error.body)))
                return json_response(self.redact(body.decode()).encode(), status=error.status)

        return handle

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


def _checked_chat(value: object) -> JsonDict:
    body = _checked_object(value)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise InvalidRequestError.of_field("messages", "needed: a list of messages that is not empty")
    return body


def _responses_params(value: object) -> JsonDict:
    try:
        return responses_request(_checked_object(value))
    except ConversionError as error:
        raise InvalidRequestError.of_field(error.field, str(error)) from None


def _checked_object(value: object) -> JsonDict:
    if not isinstance(value, dict):
        raise InvalidRequestError([{"loc": [], "msg": "the body is no object", "type": "dict_type"}])
    return value
