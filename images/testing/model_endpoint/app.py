"""An OpenAI-compatible endpoint whose model answers from a script, for tests without a model.

Not a server of a session: it is started by ``nemo_gym.testing.ModelEndpointContainer``, which gives it the key that it
asks for in every request as an environment variable, and the script with ``PUT /script``.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web
from pydantic import ValidationError

from nemo_gym.servers.scripted import (
    Reply,
    Script,
    ScriptedModel,
    completion_body,
    error_body,
    response_body,
)

KEY_VARIABLE = "NEMO_GYM_ENDPOINT_KEY"
_PORT = 8000
_MAX_BODY = 64 << 20
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(key: str) -> web.Application:
    """The endpoint; every route but ``/health`` asks for ``key`` as a bearer token."""
    scripted = ScriptedModel(Script())
    numbers = itertools.count(1)

    async def answer(request: web.Request, body_of: Callable[[Reply, str, int], dict[str, Any]]) -> web.Response:
        body = await _read_object(request)
        if body.get("stream"):
            return _error(400, "This endpoint does not stream: leave stream out.")
        reply = scripted.answer(request.path, body)
        await asyncio.sleep(reply.delay_s)
        if reply.is_error:
            return _error(reply.status, reply.error, reply.headers)
        return _json(body_of(reply, str(body.get("model", "")), next(numbers)), headers=reply.headers)

    async def respond(request: web.Request) -> web.Response:
        return await answer(request, response_body)

    async def complete(request: web.Request) -> web.Response:
        return await answer(request, completion_body)

    async def models(request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def health(request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def load(request: web.Request) -> web.Response:
        try:
            scripted.load(Script.model_validate_json(await request.read()))
        except ValidationError as error:
            return _error(422, str(error))
        return _json({"rules": len(scripted.script.rules)})

    async def asked(request: web.Request) -> web.Response:
        return _json([one.model_dump() for one in scripted.asked])

    @web.middleware
    async def with_key(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if request.path != "/health" and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            return _error(401, "Incorrect API key provided.")
        return await handler(request)

    app = web.Application(middlewares=[with_key], client_max_size=_MAX_BODY)
    app.add_routes(
        [
            web.post("/v1/responses", respond),
            web.post("/v1/chat/completions", complete),
            web.get("/v1/models", models),
            web.get("/health", health),
            web.put("/script", load),
            web.get("/asked", asked),
        ]
    )
    return app


async def _read_object(request: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise _bad_request(f"The body is no JSON: {error}.") from None
    if not isinstance(body, dict):
        raise _bad_request(f"The body must be a JSON object; found {type(body).__name__}.")
    return body


def _bad_request(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=orjson.dumps(error_body(400, message)).decode(), content_type="application/json")


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return _json(error_body(status, message), status=status, headers=headers)


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, headers=headers, content_type="application/json")


def main() -> int:
    """Serve until SIGTERM."""
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        sys.stderr.write(f"needed: the endpoint's key in {KEY_VARIABLE}; found: nothing\n")
        return 1
    web.run_app(build_app(key), host="0.0.0.0", port=_PORT, access_log=None, print=None, shutdown_timeout=1.0)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
