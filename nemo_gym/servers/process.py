"""The life of a server process: one line on stdin, serve, stop on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

from aiohttp import web

from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import Server
from nemo_gym.servers.logs import Redactor, configure_logging, logger
from nemo_gym.servers.messages import Bootstrap

EXIT_OK = 0
EXIT_FAILED = 1
_CHUNK = 1 << 16
# Idle connections outlive any client's own keep-alive, so that it is the client who closes them.
_KEEP_ALIVE_S = 75.0
_BACKLOG = 4096


class LineReader:
    """Lines of a file descriptor, read without a buffer that another reader would miss."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._rest = bytearray()

    def read_line(self) -> bytes | None:
        """The next line without its end; what stands before the end of input counts; None after it."""
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0:
            searched = len(self._rest)
            chunk = os.read(self._descriptor, _CHUNK)
            if not chunk:
                line = bytes(self._rest)
                self._rest.clear()
                return line or None
            self._rest += chunk
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def follow(self, on_line: Callable[[bytes], None]) -> None:
        """Call ``on_line`` in the running loop with each further line. The thread ends with the process."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            while (line := self.read_line()) is not None:
                loop.call_soon_threadsafe(on_line, line)

        threading.Thread(target=read, name="stdin", daemon=True).start()


def run_server(server_type: type[Server]) -> int:
    """Read the bootstrap line, serve until SIGTERM or SIGINT, and return the process's exit code."""
    # PID 1 has no default signal actions: without a handler a stop during start-up would wait for the kill.
    signal.signal(signal.SIGTERM, _leave_early)
    configure_logging("?", Redactor())
    lines = LineReader()
    try:
        line = lines.read_line()
        if line is None:
            raise ConfigError("needed: one JSON line on stdin with this server's configuration; found: end of input")
        server = server_type(Bootstrap.from_line(line))
        configure_logging(server.name, server.redact, server.settings.log_level)
        app = server.build_app()
    except ConfigError as error:
        logger.error("%s", error)
        return EXIT_FAILED
    try:
        if server.worker_count == 1:
            asyncio.run(_serve(server, app, lines=lines))
            return EXIT_OK
        return _serve_by_workers(server, app)
    except ConfigError as error:
        logger.error("%s", error)
        return EXIT_FAILED
    except OSError as error:
        logger.error("cannot listen on %s port %s: %s", server.settings.host, server.settings.port, error)
        return EXIT_FAILED


async def _serve(
    server: Server,
    app: web.Application,
    *,
    lines: LineReader | None = None,
    bound: socket.socket | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve on a socket that is bound already, else where the settings say, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        # A caller that has gone away needs no answer: its rollout stops here, and in every server behind.
        handler_cancellation=True,
        keepalive_timeout=_KEEP_ALIVE_S,
        # aiohttp waits this long for handlers to end, and as long again for their connections.
        shutdown_timeout=server.settings.shutdown_grace_s / 2,
    )
    await runner.setup()
    try:
        site: web.BaseSite
        if bound is None:
            site = web.TCPSite(runner, server.settings.host, server.settings.port, backlog=_BACKLOG)
        else:
            site = web.SockSite(runner, bound, backlog=_BACKLOG)
        await site.start()
        on_start()
        if lines is not None:
            lines.follow(server.on_input)
        logger.info("listening on %s", site.name)
        gc.collect()
        gc.freeze()
        await stop.wait()
        logger.info("stopping")
    finally:
        await runner.cleanup()
        logging.shutdown()


def _serve_by_workers(server: Server, app: web.Application) -> int:
    # Imported here: most servers have one process, and each start would pay for it.
    from nemo_gym.servers.workers import ProcessLock, StartedWorkers, Worker, bind_all, run_workers

    settings, lock, started = server.settings, ProcessLock(), StartedWorkers(server.worker_count)
    configure_logging(server.name, server.redact, settings.log_level, lock=lock)
    server.missing_workers = started.missing

    def serve(worker: Worker) -> int:
        configure_logging(server.name, server.redact, settings.log_level, worker=worker.index, lock=lock)
        server.worker = worker.index
        try:
            asyncio.run(_serve(server, app, bound=worker.socket, on_start=lambda: started.note(worker)))
        except ConfigError as error:
            logger.error("%s", error)
            return EXIT_FAILED
        return EXIT_OK

    sockets = bind_all(settings.host, settings.port, server.worker_count)
    return run_workers(sockets, serve, grace_s=settings.shutdown_grace_s)


def _leave_early(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_OK)
