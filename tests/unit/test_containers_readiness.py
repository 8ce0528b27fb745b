"""A server is ready when the right one says so over HTTP; every other way a wait can end has its reason."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nemo_gym.containers.readiness import (
    Deadlines,
    NotReadyError,
    NotReadyReason,
    Probe,
    wait_until_answering,
    wait_until_any_answer,
    wait_until_ready,
)

ALIVE = {"status": "ok", "server": "policy_model", "session_id": "s1"}
READY: tuple[int, Any] = (200, {"status": "ready"})
SHORT = Deadlines(server_s=0.3, endpoint_s=0.2)
LONG = Deadlines(server_s=20, endpoint_s=20)


class Server(http.server.ThreadingHTTPServer):
    """``root`` and ``ready``: the answers given in turn, the last one again and again. A callable does as it likes."""

    root: list[Any]
    ready: list[Any]
    asked: list[str]
    tokens: list[str | None]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.tokens.append(self.headers.get("Authorization"))
        answers = self.server.ready if self.path.endswith("/ready") else self.server.root
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            answer(self)
            return
        status, body = answer
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serving(root: list[Any] | None = None, ready: list[Any] | None = None) -> Iterator[tuple[Server, Probe]]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.root, server.ready, server.asked = root or [(200, ALIVE)], ready or [READY], []
        server.tokens = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server, Probe("127.0.0.1", server.server_address[1], "policy_model", "s1")
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def listening() -> Iterator[tuple[socket.socket, Probe]]:
    """A port that takes connections, as the engine's proxy does, and nobody behind it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener, Probe("127.0.0.1", listener.getsockname()[1], "policy_model", "s1")


def stream_without_end(handler: Handler) -> None:
    """Events for as long as somebody reads them."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b": ping\n\n")
            time.sleep(0.01)


def waiting(**more: Any) -> tuple[int, Any]:
    return 503, {"status": "waiting", **more}


def test_asked_through_the_registry_and_with_a_token() -> None:
    with serving() as (server, probe):
        through = dataclasses.replace(probe, prefix="/inside/policy_model", token="t0ken")
        wait_until_ready(through, LONG, threading.Event())
        wait_until_answering(probe, LONG, threading.Event())
    assert server.asked == ["/inside/policy_model/", "/inside/policy_model/ready", "/"]
    assert server.tokens == ["Bearer t0ken", "Bearer t0ken", None]
    assert "t0ken" not in repr(through)


def failure(wait: Callable[..., None], probe: Probe, deadlines: Deadlines = SHORT) -> NotReadyError:
    with pytest.raises(NotReadyError) as caught:
        wait(probe, deadlines, threading.Event())
    return caught.value


class TestAnyAnswer:
    """Of a server written elsewhere, which says neither who it is nor whether it is ready."""

    @pytest.mark.parametrize("status", [200, 302, 401, 404, 405, 500, 503])
    def test_is_enough(self, status: int) -> None:
        with serving(root=[(status, b"<p>whatever</p>")]) as (server, probe):
            wait_until_any_answer(probe, LONG, threading.Event())
        assert server.asked == ["/"]

    @pytest.mark.parametrize("prefix", ["", "/inside/till"])
    def test_one_without_an_end_is_not_waited_for(self, prefix: str) -> None:
        with serving(root=[stream_without_end]) as (server, probe):
            wait_until_any_answer(dataclasses.replace(probe, prefix=prefix), LONG, threading.Event())
        assert len(server.asked) == 1

    def test_a_connection_that_breaks_is_none(self) -> None:
        def reset(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.close_connection = True

        with serving(root=[reset, reset, (404, b"")]) as (server, probe):
            wait_until_any_answer(probe, LONG, threading.Event())
        assert len(server.asked) == 3

    def test_nor_is_what_is_no_http(self) -> None:
        def babble(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"220 mail.example.com ESMTP\r\n")

        with serving(root=[babble]) as (_, probe):
            error = failure(wait_until_any_answer, probe)
        assert error.reason is NotReadyReason.LATE
        assert error.detail.startswith("policy_model does not answer (")

    def test_nor_the_registrys_that_it_did_not_reach_it(self) -> None:
        unreached = (502, {"error": {"type": "downstream_error", "message": "server till did not answer /"}})
        with serving(root=[unreached, unreached, (502, {"error": "mine"})]) as (server, probe):
            wait_until_any_answer(dataclasses.replace(probe, prefix="/inside/till"), LONG, threading.Event())
        assert server.asked == ["/inside/till/"] * 3
        with serving(root=[unreached]) as (_, probe):
            error = failure(wait_until_any_answer, dataclasses.replace(probe, prefix="/inside/till"))
            assert "(server till did not answer /) after 0.3 s" in error.detail
            wait_until_any_answer(probe, LONG, threading.Event())  # the server's own words count as an answer

    def test_nobody_waits_any_more(self) -> None:
        stop = threading.Event()
        stop.set()
        with listening() as (_, probe), pytest.raises(NotReadyError) as caught:
            wait_until_any_answer(probe, LONG, stop)
        assert caught.value.reason is NotReadyReason.STOPPED


class TestReady:
    def test_at_once(self) -> None:
        with serving() as (server, probe):
            wait_until_ready(probe, LONG, threading.Event())
            assert server.asked == ["/", "/ready"]

    def test_answering_does_not_ask_whether_it_is_ready(self) -> None:
        with serving(ready=[waiting()]) as (server, probe):
            wait_until_answering(probe, LONG, threading.Event())
            assert server.asked == ["/"]

    def test_after_some_answers_that_it_is_not(self) -> None:
        starting = (503, b"starting")
        key = waiting(key="policy_base_url", detail="refused")
        with serving([starting, (500, b""), (200, ALIVE)], [waiting(), key, (404, b"?"), READY]) as (server, probe):
            wait_until_ready(probe, LONG, threading.Event())
            assert server.asked == ["/"] * 3 + ["/ready"] * 4

    def test_connections_closed_without_an_answer(self) -> None:
        """What the engine's port proxy does until the server in the container listens."""

        def hang_up(handler: Handler) -> None:
            handler.connection.shutdown(socket.SHUT_RDWR)

        with serving([hang_up, hang_up, (200, ALIVE)]) as (_, probe):
            wait_until_ready(probe, LONG, threading.Event())

    def test_nobody_listens_at_first(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        probe = Probe("127.0.0.1", port, "policy_model", "s1")
        waits = threading.Thread(target=wait_until_ready, args=(probe, LONG, threading.Event()))
        waits.start()
        time.sleep(0.05)
        with Server(("127.0.0.1", port), Handler) as server:
            server.root, server.ready, server.asked, server.tokens = [(200, ALIVE)], [READY], [], []
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            waits.join(10)
            server.shutdown()
            thread.join()
            assert server.asked == ["/", "/ready"]


class TestLate:
    def test_nobody_ever_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        error = failure(wait_until_ready, Probe("127.0.0.1", port, "policy_model", "s1"))
        assert error.reason is NotReadyReason.LATE
        assert error.detail.startswith("policy_model does not answer (")
        assert error.detail.endswith("after 0.3 s")
        assert "refused" in error.detail

    def test_an_open_port_is_no_answer(self) -> None:
        with listening() as (_, probe):
            started = time.monotonic()
            error = failure(wait_until_ready, probe)
            assert time.monotonic() - started < 30
        assert error.reason is NotReadyReason.LATE
        assert "it takes connections and does not answer" in error.detail

    def test_an_answer_without_an_end(self) -> None:
        with serving([stream_without_end]) as (_, probe):
            error = failure(wait_until_ready, probe)
        assert error.reason is NotReadyReason.LATE
        assert error.detail == "policy_model does not answer (its answer has no end) after 0.3 s"

    def test_half_an_answer_is_asked_for_again(self) -> None:
        def break_off(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "100")
            handler.end_headers()
            handler.wfile.write(b'{"server": ')
            handler.close_connection = True

        with serving([break_off, (200, ALIVE)]) as (server, probe):
            wait_until_answering(probe, LONG, threading.Event())
        assert len(server.asked) == 2

    def test_errors_only(self) -> None:
        with serving([(503, b"starting")]) as (_, probe):
            error = failure(wait_until_answering, probe)
        assert (error.reason, error.answer) == (NotReadyReason.LATE, {})
        assert error.detail == "policy_model does not answer (GET / answered 503) after 0.3 s"

    def test_the_model_endpoint(self) -> None:
        body = {"status": "waiting", "key": "policy_base_url", "address": "http://x", "detail": "refused"}
        with serving(ready=[(503, body)]) as (_, probe):
            error = failure(wait_until_ready, probe)
        assert error.reason is NotReadyReason.ENDPOINT_LATE
        assert (error.detail, error.answer) == ("refused", body)

    def test_waiting_for_something_that_has_no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nemo_gym.containers.readiness._REQUEST_TIMEOUT_S", 0.1)
        with serving(ready=[waiting(awaited=["a"])]) as (_, probe):
            error = failure(wait_until_ready, probe)
        assert error.reason is NotReadyReason.LATE
        assert error.answer == {"status": "waiting", "awaited": ["a"]}
        assert error.detail.startswith("not ready (/ready answered 503) after 0.3")


class TestRefused:
    def test_a_server_that_says_waiting_is_pointless(self) -> None:
        body = {"status": "failed", "key": "policy_api_key", "address": "http://x", "detail": "HTTP 401"}
        with serving(ready=[waiting(), (503, body)]) as (server, probe):
            error = failure(wait_until_ready, probe, LONG)
            assert server.asked.count("/ready") == 2
        assert (error.reason, error.detail, error.answer) == (NotReadyReason.FAILED, "HTTP 401", body)

    @pytest.mark.parametrize(
        "answer",
        [
            (200, {**ALIVE, "server": "other"}),
            (200, {**ALIVE, "session_id": "s2"}),
            (200, {"status": "ok"}),
            (200, b"<html>"),
            (200, [ALIVE]),
            (404, b"not found"),
            (401, {"detail": "who are you"}),
            (200, b"<html>" * 20_000),
        ],
    )
    def test_another_server(self, answer: tuple[int, Any]) -> None:
        with serving([answer]) as (server, probe):
            error = failure(wait_until_ready, probe, LONG)
            assert server.asked == ["/"]
        assert error.reason is NotReadyReason.WRONG_SERVER
        assert error.detail.startswith(f"127.0.0.1:{probe.port} is answered by another server (HTTP {answer[0]}, ")


class TestStop:
    """The event is set when the container dies or the start is given up: nobody waits any longer."""

    def ends(self, probe: Probe, seen: threading.Event) -> None:
        stop, ended = threading.Event(), threading.Event()
        errors: list[NotReadyError] = []

        def wait() -> None:
            try:
                wait_until_ready(probe, LONG, stop)
            except NotReadyError as error:
                errors.append(error)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert seen.wait(5)
        stop.set()
        assert ended.wait(3)  # of the 20 s it might have taken
        thread.join()
        assert [error.reason for error in errors] == [NotReadyReason.STOPPED]

    def test_between_two_looks(self) -> None:
        seen = threading.Event()

        def not_yet(handler: Handler) -> None:
            handler.send_error(503)
            seen.set()

        with serving([not_yet]) as (_, probe):
            self.ends(probe, seen)

    def test_while_nobody_answers(self) -> None:
        with listening() as (listener, probe):
            seen = threading.Event()
            taken: list[socket.socket] = []

            def take() -> None:
                taken.append(listener.accept()[0])
                seen.set()

            thread = threading.Thread(target=take)
            thread.start()
            self.ends(probe, seen)
            thread.join()
            taken[0].close()

    def test_while_the_server_probes_its_endpoint(self) -> None:
        seen, over = threading.Event(), threading.Event()

        def probe_long(handler: Handler) -> None:
            seen.set()
            over.wait(10)

        with serving(ready=[probe_long]) as (_, probe):
            self.ends(probe, seen)
            over.set()

    def test_in_the_middle_of_an_answer(self) -> None:
        seen = threading.Event()

        def stream(handler: Handler) -> None:
            seen.set()
            stream_without_end(handler)

        with serving([stream]) as (_, probe):
            self.ends(probe, seen)

    def test_set_beforehand(self) -> None:
        stop = threading.Event()
        stop.set()
        with listening() as (_, probe), pytest.raises(NotReadyError) as caught:
            wait_until_ready(probe, LONG, stop)
        assert caught.value.reason is NotReadyReason.STOPPED
