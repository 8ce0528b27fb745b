"""The caller: sends rollouts as told by JSON lines on stdin, one line at a time, and says how they went on stdout.

A line is ``{"url", "path", "body", "concurrency", "seconds", "most"}``: at most ``most`` requests within ``seconds``.
In ``path``, ``{rollout}`` stands for a name of the request's own.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
from yarl import URL

JSON = {"Content-Type": "application/json"}
DEADLINE_S = 60.0


async def send(session: aiohttp.ClientSession, order: dict[str, Any], names: Iterator[int]) -> dict[str, Any]:
    """``concurrency`` callers at a time; each sends its next request when its last was answered."""
    body, latencies, wrong = orjson.dumps(order["body"]), list[float](), list[str]()
    base, path = URL(order["url"]), order["path"]
    sent = itertools.count()
    began = time.perf_counter()
    until = began + order["seconds"]

    async def call() -> None:
        while time.perf_counter() < until and next(sent) < order["most"]:
            # From parts, so that addresses that are new each time cost little: it is the servers that are measured.
            url = base.with_path(path.replace("{rollout}", f"rollout-{next(names)}-r0"))
            asked = time.perf_counter()
            async with session.post(url, data=body, headers=JSON) as response:
                answer = await response.read()
            latencies.append(time.perf_counter() - asked)
            if response.status != 200 or orjson.loads(answer).get("reward") != 1.0:
                wrong.append(answer[:500].decode("utf-8", "replace"))

    async with asyncio.TaskGroup() as callers:
        for _ in range(order["concurrency"]):
            callers.create_task(call())
    return {"seconds": time.perf_counter() - began, "latencies": latencies, "wrong": wrong}


async def main() -> None:
    names = itertools.count()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            result = await send(session, orjson.loads(line), names)
            sys.stdout.buffer.write(orjson.dumps(result) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(main())
