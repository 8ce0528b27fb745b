"""A container's log as lines: cut as the engine cuts it, and through the real SDK from a daemon in this process."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator

import pytest

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.docker_streams import ContainerLogLines
from nemo_gym.containers.engine import LogLine
from nemo_gym.errors import EngineNotFoundError
from tests.unit.fake_daemon import Request, fake_daemon

ONE, TWO = "2026-11-29T17:00:01.000000001Z", "2026-11-29T17:00:02.000000002Z"


def frame(text: bytes, stream: int = 2) -> bytes:
    return struct.pack(">BxxxL", stream, len(text)) + text


class Messages:
    """What the SDK hands over; an exception among them is raised."""

    def __init__(self, *messages: bytes | Exception) -> None:
        self.messages = messages
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for message in self.messages:
            if isinstance(message, Exception):
                raise message
            yield message

    def close(self) -> None:
        self.closed += 1


class TestLines:
    def test_each_has_the_engines_time(self) -> None:
        messages = Messages(f"{ONE} a b\n".encode(), f"{TWO} \n".encode(), f"{TWO} ümläut\r\n".encode())
        assert list(ContainerLogLines(messages)) == [LogLine(ONE, "a b"), LogLine(TWO, ""), LogLine(TWO, "ümläut")]

    def test_a_long_one_comes_in_pieces(self) -> None:
        """Each piece has a time; a letter may be cut through."""
        whole = "x" * 20 + "ü"
        cut = whole.encode()[:-1], whole.encode()[-1:] + b"\n"
        messages = Messages(f"{ONE} ".encode() + cut[0], f"{TWO} ".encode() + cut[1], f"{TWO} next\n".encode())
        assert list(ContainerLogLines(messages)) == [LogLine(ONE, whole), LogLine(TWO, "next")]

    def test_the_last_may_have_no_end(self) -> None:
        assert list(ContainerLogLines(Messages(f"{ONE} half".encode()))) == [LogLine(ONE, "half")]

    def test_what_is_no_text(self) -> None:
        assert list(ContainerLogLines(Messages(f"{ONE} ".encode() + b"\xff\n"))) == [
            LogLine(ONE, "\N{REPLACEMENT CHARACTER}")
        ]

    @pytest.mark.parametrize("end", [ValueError("closed"), OSError("cut"), AttributeError("fp"), struct.error("short")])
    def test_a_stream_that_breaks_is_over(self, end: Exception) -> None:
        assert list(ContainerLogLines(Messages(f"{ONE} a\n".encode(), end))) == [LogLine(ONE, "a")]

    def test_close_is_idempotent(self) -> None:
        messages = Messages()
        log = ContainerLogLines(messages)
        log.close()
        log.close()
        assert messages.closed == 1


class TestThroughTheSdk:
    """The engine's frames, as ``GET /containers/ID/logs`` sends them."""

    @pytest.fixture
    def asked(self) -> list[str]:
        return []

    def daemon_that_writes(self, asked: list[str], stays: threading.Event | None, *frames: bytes) -> dict[str, object]:
        def logs(request: Request) -> None:
            asked.append(request.path.partition("?")[2])
            request.begin_chunks()
            for piece in frames:
                request.send_chunk(piece)
            if stays is not None:
                stays.set()
                request.wait_until_the_client_is_gone()
            else:
                request.end_chunks()

        def inspect(request: Request) -> None:
            request.send_json({"Id": "c1", "Config": {"Tty": False}})

        return {"GET /containers/c1/logs": logs, "GET /containers/c1/json": inspect}

    def test_up_to_now(self, asked: list[str]) -> None:
        routes = self.daemon_that_writes(asked, None, frame(f"{ONE} a\n".encode(), 1), frame(f"{TWO} b\n".encode()))
        with fake_daemon(routes) as daemon:  # type: ignore[arg-type]
            engine = DockerEngine.connect({**os.environ, "DOCKER_HOST": daemon.url})
            log = engine.open_log("c1", tail_lines=2, follow=False)
            assert list(log) == [LogLine(ONE, "a"), LogLine(TWO, "b")]
            log.close()
            engine.close()
        assert sorted(asked[0].split("&")) == ["follow=0", "stderr=1", "stdout=1", "tail=2", "timestamps=1"]

    def test_followed_and_closed_from_another_thread(self, asked: list[str]) -> None:
        waiting = threading.Event()
        routes = self.daemon_that_writes(asked, waiting, frame(f"{ONE} a\n".encode()))
        with fake_daemon(routes) as daemon:  # type: ignore[arg-type]
            engine = DockerEngine.connect({**os.environ, "DOCKER_HOST": daemon.url})
            log = engine.open_log("c1", tail_lines=None, follow=True)
            lines = iter(log)
            assert next(lines) == LogLine(ONE, "a")
            assert waiting.wait(5)
            closing = threading.Timer(0.1, log.close)
            closing.start()
            assert list(lines) == []
            closing.join()
            engine.close()
        assert {"follow=1", "tail=all"} <= set(asked[0].split("&"))

    def test_a_container_that_is_gone(self) -> None:
        with fake_daemon({}) as daemon:
            engine = DockerEngine.connect({**os.environ, "DOCKER_HOST": daemon.url})
            with pytest.raises(EngineNotFoundError):
                engine.open_log("c1", tail_lines=None, follow=False)
            engine.close()
