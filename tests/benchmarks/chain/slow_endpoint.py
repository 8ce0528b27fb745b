"""A model endpoint in a process of its own that answers every request after the same time, as many at once as come.

    python -m tests.benchmarks.chain.slow_endpoint DELAY_S

Prints the port it listens on, on this machine's loopback.
"""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web

ANSWER = {
    "id": "resp_1",
    "object": "response",
    "created_at": 0,
    "status": "completed",
    "model": "scripted",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "The answer is \\boxed{18}.", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 110,
    },
}


async def serve(delay_s: float) -> None:
    """Serve until killed."""

    async def respond(request: web.Request) -> web.StreamResponse:
        await request.read()
        await asyncio.sleep(delay_s)
        return web.json_response(ANSWER)

    async def models(request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/responses", respond)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=8192)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
