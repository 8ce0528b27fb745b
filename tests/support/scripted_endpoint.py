"""An OpenAI-compatible endpoint that answers from a script: the model of tests that must know the reward ahead."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from nemo_gym.servers.scripted import Reply, response_body


class ScriptedEndpoint:
    """``answer`` maps the last user message to the reply's text; a ``ValueError`` of it is an HTTP 400 with its text.

    Listens while entered, on this machine's loopback by default. ``key``: the API key asked for; None lets everybody
    in. ``delay_s``: seconds before each answer.
    """

    def __init__(
        self,
        answer: Callable[[str], str],
        *,
        key: str | None = None,
        delay_s: float = 0.0,
        address: str = "127.0.0.1",
    ) -> None:
        self.answer = answer
        self.key = key
        self.asked = threading.Event()
        self._leaving = threading.Event()
        self.delay_s = delay_s
        self.prompts: list[str] = []
        self._server = _Server((address, 0), _Handler)
        self._server.daemon_threads = True
        self._server.scripted = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{self._server.server_address[0]!s}:{self.port}/v1"

    def overrides(self, **more: Any) -> dict[str, Any]:
        """The config overrides that make it the policy model."""
        return {
            "policy_base_url": self.url,
            "policy_api_key": self.key or "not-asked-for",
            "policy_model_name": "scripted",
            **more,
        }

    def output_of(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The output items for a Responses API request."""
        return [message_item(self.answer(last_user_text(request["input"])))]

    def think(self) -> None:
        """Wait as long as an answer takes, or until the endpoint ends."""
        self.asked.set()
        self._leaving.wait(self.delay_s)

    def __enter__(self) -> ScriptedEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    # Five by default: whoever comes sixth at the same time asks again a second later.
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that are killed leave connections broken off; anything else is printed as usual."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second would wait for the first to be acknowledged

    @property
    def scripted(self) -> ScriptedEndpoint:
        return self.server.scripted  # type: ignore[attr-defined,no-any-return]

    def do_GET(self) -> None:
        if self._is_allowed():
            self._send(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_allowed():
            return
        if not self.path.endswith("/responses"):
            self._send(404, {"error": {"message": f"no route {self.path}"}})
            return
        self.scripted.prompts.append(last_user_text(body["input"]))
        self.scripted.think()
        try:
            output = self.scripted.output_of(body)
        except ValueError as refusal:
            self._send(400, {"error": {"message": str(refusal), "type": "invalid_request_error"}})
        else:
            self._send(200, {**response_body(Reply(), str(body.get("model")), 0), "output": output})

    def _is_allowed(self) -> bool:
        key = self.scripted.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._send(401, {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error"}})
        return False

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test's output is pytest's."""


def last_user_text(given: str | list[dict[str, Any]]) -> str:
    if isinstance(given, str):
        return given
    content = next(item["content"] for item in reversed(given) if item.get("role") == "user")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def message_item(text: str) -> dict[str, Any]:
    """An assistant's message."""
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
