"""The limit: the same hops with the same payloads in plain aiohttp, checking nothing.

    python bare.py agent|model|resources|endpoint PORT [PORT of each server behind]

The endpoint stands behind both chains. It answers at once, with the same bytes to everyone.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from typing import Any

import aiohttp
import orjson
from aiohttp import web

JSON = {"Content-Type": "application/json"}
ANSWER = orjson.dumps(
    {
        "id": "resp_0123456789abcdef",
        "object": "response",
        "created_at": 1700000000.0,
        "status": "completed",
        "model": "zero-latency",
        "output": [
            {
                "id": "msg_0123456789abcdef",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "They meet after 42 minutes. " * 20, "annotations": []}],
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": 220,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 180,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 400,
        },
    }
)


def reply(value: Any) -> web.Response:
    return web.Response(body=value if isinstance(value, bytes) else orjson.dumps(value), headers=JSON)


class Bare:
    """One server of the chain."""

    def __init__(self, behind: list[str]) -> None:
        self.behind = [f"http://127.0.0.1:{port}" for port in behind]
        self.sessions: dict[str, dict[str, Any]] = {}

    async def client(self, app: web.Application) -> Any:
        connector = aiohttp.TCPConnector(limit=0)
        self.session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        yield
        await self.session.close()

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[bytes, str]:
        async with self.session.post(url, data=body, headers=headers) as response:
            return await response.read(), response.headers.get("Set-Cookie", "")

    async def run(self, request: web.Request) -> web.Response:
        body = await request.read()
        row = orjson.loads(body)
        resources, model = self.behind
        _, cookie = await self.post(f"{resources}/seed_session", body, JSON)
        params = orjson.dumps(row["responses_create_params"])
        response, _ = await self.post(f"{model}/v1/responses", params, JSON)
        verified = orjson.dumps({**row, "response": orjson.loads(response)})
        result, _ = await self.post(f"{resources}/verify", verified, {**JSON, "Cookie": cookie.split(";")[0]})
        return reply(result)

    async def respond(self, request: web.Request) -> web.Response:
        params = orjson.loads(await request.read())
        params["model"] = "zero-latency"
        response, _ = await self.post(f"{self.behind[0]}/v1/responses", orjson.dumps(params), JSON)
        return reply(orjson.loads(response))

    async def seed(self, request: web.Request) -> web.Response:
        orjson.loads(await request.read())
        name = secrets.token_hex(16)
        self.sessions[name] = {"seeded": True}
        response = reply({})
        response.headers["Set-Cookie"] = f"session={name}; Path=/"
        return response

    async def verify(self, request: web.Request) -> web.Response:
        row = orjson.loads(await request.read())
        state = self.sessions.get(request.cookies["session"], {})
        text = row["response"]["output"][0]["content"][0]["text"]
        return reply({**row, "reward": float(state.get("seeded", False) and "42" in text)})

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        return reply(ANSWER)

    async def identity(self, request: web.Request) -> web.Response:
        return reply({"status": "ok"})


async def serve(kind: str, port: int, behind: list[str]) -> None:
    bare = Bare(behind)
    routes = {
        "agent": {"/run": bare.run},
        "model": {"/v1/responses": bare.respond},
        "resources": {"/seed_session": bare.seed, "/verify": bare.verify},
        "endpoint": {"/v1/responses": bare.answer},
    }
    app = web.Application()
    app.cleanup_ctx.append(bare.client)
    app.router.add_get("/", bare.identity)
    app.router.add_get("/v1/models", bare.identity)
    for path, handler in routes[kind].items():
        app.router.add_post(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
