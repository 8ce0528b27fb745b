"""A unix socket in front of the engine's own, whose rules delay, drop or break chosen API calls.

Every request gets a connection of its own to the engine, so that one rule never touches a neighbour's call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

Fault = Literal["delay request", "delay answer", "drop request", "drop answer", "break request", "break answer"]
"""Delay: for ``seconds``. Drop: the caller never hears of it. Break: the connection ends. A request that is dropped or
broken never reaches the engine; one whose answer is does, and the engine does what it says."""


@dataclass
class Rule:
    """What becomes of the calls whose "METHOD path?query" matches ``call``; of the first ``times`` of them."""

    call: str
    fault: Fault
    seconds: float = 0.0
    times: int = 1_000_000
    hits: int = 0
    hit: threading.Event = field(default_factory=threading.Event)

    def takes(self, call: str) -> bool:
        if self.hits >= self.times or not re.search(self.call, call):
            return False
        self.hits += 1
        self.hit.set()
        return True


def engine_socket() -> Path:
    """The unix socket of the engine that this process uses."""
    return Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))


class EngineProxy:
    """Listens at ``path`` while entered. Rules may be added and removed at any time."""

    def __init__(self, path: Path, *rules: Rule, engine: Path | None = None) -> None:
        self.path = path
        self.rules = list(rules)
        self.calls: list[str] = []
        self._engine = engine or engine_socket()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine-proxy")
        self._listening = threading.Event()
        self._over = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def __enter__(self) -> EngineProxy:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()
        self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._accept, self.path)
        self._listening.set()
        await self._over.wait()
        server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._carry(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        call = head.split(b" HTTP/", 1)[0].decode()
        self.calls.append(call)
        rule = next((rule for rule in self.rules if rule.takes(call)), None)
        fault = rule.fault if rule else ""
        if rule and fault == "delay request":
            await asyncio.sleep(rule.seconds)
        if fault == "break request":
            return
        if fault == "drop request":
            await _until_end(reader)
            return
        engine_reader, engine_writer = await asyncio.open_unix_connection(self._engine)
        try:
            engine_writer.write(head)
            upwards = asyncio.ensure_future(_pass_up(reader, engine_writer, is_upgraded=_is_upgrade(head)))
            try:
                answer = await engine_reader.readuntil(b"\r\n\r\n")
                if rule and fault == "delay answer":
                    await asyncio.sleep(rule.seconds)
                if fault == "break answer":
                    return
                if fault == "drop answer":
                    await _swallow(engine_reader)
                    await upwards
                    return
                writer.write(answer if _is_upgrade(head) else _only_one(answer))
                await _pipe(engine_reader, writer)
            finally:
                upwards.cancel()
        finally:
            engine_writer.close()


def _is_upgrade(head: bytes) -> bool:
    return re.search(rb"\r\nUpgrade:", head, re.IGNORECASE) is not None


def _only_one(answer_head: bytes) -> bytes:
    """The answer's head, telling the caller that its connection ends with it.

    The request is left alone: an engine that is told so there does not notice a caller that dies during a build.
    """
    return answer_head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"


async def _pass_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_upgraded: bool) -> None:
    """What the caller sends. Its end is the caller's, and the engine's to know of: only a stream may end in half."""
    try:
        await _pipe(reader, writer)
    except OSError:  # it died with an answer unread
        is_upgraded = False
    if not is_upgraded:
        writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def _until_end(reader: asyncio.StreamReader) -> None:
    """Until the caller goes away."""
    await _swallow(reader)
