"""A Docker daemon in this process that speaks just enough HTTP on a real socket for the SDK, as a script says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

Route = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request under way. ``server.routes`` has what is done with it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes
    timeout = 10
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # the tests' output stays clean
        pass

    def _answer(self) -> None:
        path = re.sub(r"^/v[\d.]+/", "/", urlsplit(self.path).path)
        self.server.seen.append(f"{self.command} {path}")
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length) if "chunked" not in self.headers.get("Transfer-Encoding", "") else b""
        route = self.server.routes.get(f"{self.command} {path}")
        if route is None:
            self.send_json({"message": f"no such thing: {path}"}, status=404)
        else:
            route(self)

    do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = _answer

    def send_json(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")  # no idle connection keeps the daemon from ending
        self.end_headers()
        self.wfile.write(body)

    def begin_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()

    def send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def send_message(self, **content: Any) -> None:
        self.send_chunk(json.dumps(content).encode() + b"\r\n")

    def end_chunks(self) -> None:
        self.send_chunk(b"")

    def wait_until_the_client_is_gone(self) -> bool:
        """Whether it went within some seconds."""
        try:
            return self.rfile.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # when it is closed, every request has been served to its end
    routes: dict[str, Route]
    seen: list[str]

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.server_address[1]}"


def _version(request: Request) -> None:
    request.send_json({"ApiVersion": "1.41", "Version": "20.10.24"})


@contextmanager
def fake_daemon(routes: dict[str, Route]) -> Iterator[_Server]:
    """A daemon that answers ``GET /version`` and ``routes`` (``"POST /build"`` without the API version)."""
    with _Server(("127.0.0.1", 0), Request) as server:
        server.routes = {"GET /version": _version, **routes}
        server.seen = []
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
