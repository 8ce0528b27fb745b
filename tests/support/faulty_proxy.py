"""A proxy in front of a registry that answers, slows, cuts and stalls as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field
from types import TracebackType

_PIECE = 16 * 1024


@dataclass
class Fault:
    """What happens to the next ``times`` requests whose first line holds ``path``.

    With ``status`` the proxy answers itself; else what the registry answers is passed on, at ``bytes_per_s``, and
    cut or left hanging after so many bytes of the body.
    """

    path: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = "{}"
    bytes_per_s: int = 0
    cut_after: int | None = None
    stall_after: int | None = None
    times: int = 1_000_000


class FaultyProxy:
    """Runs in a thread of its own while its ``with`` block does."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy")
        self._tasks: set[asyncio.Task[None]] = set()
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.open = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    def _fault(self, line: str) -> Fault | None:
        for fault in self.faults:
            if fault.path in line and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        if first == b"\x16":  # an engine tries TLS first
            return
        head = first + await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        self.seen.append(line.decode().removesuffix(" HTTP/1.1"))
        fault = self._fault(line.decode()) or Fault("")
        if fault.status:
            extra = "".join(f"{name}: {value}\r\n" for name, value in fault.headers.items())
            length = len(fault.body)
            writer.write(
                f"HTTP/1.1 {fault.status} As told\r\nContent-Type: application/json\r\n{extra}"
                f"Content-Length: {length}\r\nConnection: close\r\n\r\n{fault.body}".encode()
            )
            await writer.drain()
            return
        upstream, request = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            request.write(line + b"\r\nConnection: close\r\n" + rest)
            writer.write(await upstream.readuntil(b"\r\n\r\n"))
            await self._pass_on(upstream, writer, reader, fault)
        finally:
            request.close()

    async def _pass_on(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, fault: Fault
    ) -> None:
        passed = 0
        limit = fault.cut_after if fault.cut_after is not None else fault.stall_after
        while piece := await upstream.read(_PIECE if limit is None else max(1, min(_PIECE, limit - passed))):
            if limit is not None and passed >= limit:
                if fault.stall_after is not None:
                    await reader.read()  # until the client has gone
                return
            writer.write(piece)
            await writer.drain()
            passed += len(piece)
            if fault.bytes_per_s:
                await asyncio.sleep(len(piece) / fault.bytes_per_s)
