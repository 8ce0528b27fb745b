"""Streams of a Docker engine: read through the real SDK, from a daemon in this process."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.containers.docker_streams import DeathEvents, ImageLog, SocketStdin
from nemo_gym.containers.engine import Died
from nemo_gym.errors import EngineError, ImageError
from tests.unit.fake_daemon import Request, fake_daemon


@contextmanager
def client_of(url: str) -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=url, version="1.41", timeout=10)
    client.trust_env = False
    try:
        yield client
    finally:
        client.close()


def build_log(client: docker.APIClient) -> ImageLog:
    return ImageLog(
        client,
        "building x",
        lambda own: own.build(fileobj=io.BytesIO(b"tar"), custom_context=True, tag="x", decode=True, timeout=None),
    )


def die(container_id: str, exit_code: object) -> bytes:
    attributes = {} if exit_code is None else {"exitCode": exit_code}
    event = {"Type": "container", "Action": "die", "Actor": {"ID": container_id, "Attributes": attributes}}
    return json.dumps(event).encode() + b"\n"


class FakeStream:
    """Chunks as the SDK hands them over; an exception among them is raised."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self.chunks = chunks
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    def close(self) -> None:
        self.closed += 1


class TestDeathEvents:
    def test_values(self) -> None:
        events = DeathEvents(FakeStream(die("a", "137"), die("b", "0"), die("c", None)))
        assert list(events) == [Died("a", 137), Died("b", 0), Died("c", -1)]

    @given(st.lists(st.integers(1, 500)))
    def test_chunks_may_be_cut_anywhere(self, cuts: list[int]) -> None:
        text = die("a", "1") + die("b", "2") + b"\n" + die("c", "3")
        chunks, begin = [], 0
        for cut in cuts:
            chunks.append(text[begin : begin + cut])
            begin += cut
        events = DeathEvents(FakeStream(*chunks, text[begin:]))
        assert list(events) == [Died("a", 1), Died("b", 2), Died("c", 3)]

    @pytest.mark.parametrize(
        "end", [OSError("gone"), AttributeError("'NoneType' has no attribute 'read'"), ValueError("closed file")]
    )
    def test_a_stream_that_breaks_is_over(self, end: Exception) -> None:
        assert list(DeathEvents(FakeStream(die("a", "1"), end))) == [Died("a", 1)]

    def test_close_is_idempotent(self) -> None:
        stream = FakeStream()
        events = DeathEvents(stream)
        events.close()
        events.close()
        assert stream.closed == 1

    def test_closed_from_another_thread(self) -> None:
        def serve(request: Request) -> None:
            request.begin_chunks()
            request.send_chunk(die("a", "1"))
            gone.append(request.wait_until_the_client_is_gone())

        gone: list[bool] = []
        with fake_daemon({"GET /events": serve}) as daemon, client_of(daemon.url) as client:
            events = DeathEvents(client.events(decode=False))
            iterator = iter(events)
            assert next(iterator) == Died("a", 1)
            with ThreadPoolExecutor(1) as pool:
                rest = pool.submit(list, iterator)
                events.close()
                assert rest.result(timeout=5) == []
        assert gone == [True]

    def test_ended_by_the_engine(self) -> None:
        def serve(request: Request) -> None:
            request.begin_chunks()
            request.send_chunk(die("a", "1"))
            request.close_connection = True  # without the last chunk: the daemon was killed

        with fake_daemon({"GET /events": serve}) as daemon, client_of(daemon.url) as client:
            events = DeathEvents(client.events(decode=False))
            assert list(events) == [Died("a", 1)]
            events.close()


class TestImageLog:
    def read(self, serve: Callable[[Request], None]) -> list[str]:
        with fake_daemon({"POST /build": serve}) as daemon, client_of(daemon.url) as client:
            return list(build_log(client))

    def test_pieces_of_a_build(self) -> None:
        def serve(request: Request) -> None:
            request.begin_chunks()
            request.send_message(stream="Step 1/2 : FROM x\n")
            request.send_message(aux={"ID": "sha256:00"})
            request.send_message(stream="Successfully built 00\n")
            request.end_chunks()

        assert self.read(serve) == ["Step 1/2 : FROM x\n", "Successfully built 00\n"]

    def test_pieces_of_a_pull(self) -> None:
        def serve(request: Request) -> None:
            request.begin_chunks()
            request.send_message(status="Pulling from library/python", id="3.13")
            request.send_message(status="Downloading", id="aa", progressDetail={"current": 1, "total": 2})
            request.send_message(status="Pull complete", id="aa", progressDetail={})
            request.end_chunks()

        with fake_daemon({"POST /images/create": serve}) as daemon, client_of(daemon.url) as client:
            log = ImageLog(client, "pulling x", lambda own: own.pull("x", stream=True, decode=True))
            assert list(log) == ["3.13: Pulling from library/python\n", "aa: Pull complete\n"]

    def test_a_failed_build_carries_the_end_of_its_log(self) -> None:
        def serve(request: Request) -> None:
            request.begin_chunks()
            for number in range(100):
                request.send_message(stream=f"line {number}\n")
            request.send_message(error="The command returned a non-zero code: 1\n", errorDetail={})
            request.end_chunks()

        with pytest.raises(ImageError, match="building x failed: The command returned a non-zero code: 1") as caught:
            self.read(serve)
        assert caught.value.log_tail.splitlines() == [f"line {number}" for number in range(75, 100)]
        assert str(caught.value).endswith("line 99")

    def test_refused_at_once(self) -> None:
        def serve(request: Request) -> None:
            request.send_json({"message": "dockerfile parse error"}, status=400)

        with pytest.raises(ImageError, match=r"dockerfile parse error\nEnd of the log:\n\(empty\)"):
            self.read(serve)

    def test_the_engine_breaks_off(self) -> None:
        def serve(request: Request) -> None:
            request.begin_chunks()
            request.send_message(stream="Step 1\n")
            request.close_connection = True

        with pytest.raises(ImageError, match="building x failed: the engine broke off"):
            self.read(serve)

    def test_no_engine(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with client_of(url) as client, pytest.raises(ImageError, match="the engine broke off"):
            list(build_log(client))

    def test_closed_under_way(self) -> None:
        def serve(request: Request) -> None:
            request.begin_chunks()
            request.send_message(stream="Step 1\n")
            gone.append(request.wait_until_the_client_is_gone())

        gone: list[bool] = []
        with fake_daemon({"POST /build": serve}) as daemon, client_of(daemon.url) as client:
            log = build_log(client)
            pieces = iter(log)
            assert next(pieces) == "Step 1\n"
            with ThreadPoolExecutor(1) as pool:
                rest = pool.submit(list, pieces)
                log.close()
                log.close()
                with pytest.raises(ImageError, match=r"building x failed: given up\nEnd of the log:\nStep 1"):
                    rest.result(timeout=5)
        assert gone == [True]

    def test_closed_before_it_began(self) -> None:
        with fake_daemon({}) as daemon, client_of(daemon.url) as client:
            log = build_log(client)
            log.close()
            with pytest.raises(ImageError, match="given up"):
                list(log)
            assert daemon.seen == []

    def test_closed_before_the_engine_answers(self) -> None:
        """The daemon takes in the whole context first; a build given up meanwhile ends at its first line."""

        def serve(request: Request) -> None:
            asked.set()
            assert closed.wait(5)
            request.begin_chunks()
            request.send_message(stream="Step 1\n")
            gone.append(request.wait_until_the_client_is_gone())

        asked, closed = threading.Event(), threading.Event()
        gone: list[bool] = []
        with fake_daemon({"POST /build": serve}) as daemon, client_of(daemon.url) as client:
            log = build_log(client)
            with ThreadPoolExecutor(1) as pool:
                read = pool.submit(list, log)
                assert asked.wait(5)
                log.close()
                closed.set()
                with pytest.raises(ImageError, match="given up"):
                    read.result(timeout=5)
        assert gone == [True]


class TestSocketStdin:
    def test_a_bare_socket(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            stdin = SocketStdin(ours)
            stdin.send(b"line\n")
            stdin.close()
            stdin.close()
            assert theirs.recv(100) == b"line\n"
            assert theirs.recv(100) == b""

    def test_what_the_sdk_hands_over(self) -> None:
        """The file object over the connection of an attach call, upgraded."""

        def serve(request: Request) -> None:
            request.send_response(101, "UPGRADED")
            request.send_header("Connection", "Upgrade")
            request.send_header("Upgrade", "tcp")
            request.end_headers()
            received.append(request.rfile.read())
            request.close_connection = True

        received: list[bytes] = []
        line = json.dumps({"config": "x" * 500_000}).encode() + b"\n"
        with fake_daemon({"POST /containers/a/attach": serve}) as daemon, client_of(daemon.url) as client:
            stdin = SocketStdin(client.attach_socket("a", params={"stdin": 1, "stream": 1}))
            stdin.send(line)
            stdin.close()
        assert received == [line]

    def test_one_that_can_only_send(self) -> None:
        class Channel:
            def __init__(self) -> None:
                self.sent = b""

            def send(self, data: memoryview) -> int:
                self.sent += bytes(data[:3])
                return min(3, len(data))

            def shutdown(self, how: int) -> None: ...

            def close(self) -> None: ...

        channel = Channel()
        stdin = SocketStdin(channel)
        stdin.send(b"a longer line\n")
        stdin.close()
        assert channel.sent == b"a longer line\n"

    def test_the_container_is_gone(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        stdin = SocketStdin(ours)
        with pytest.raises(EngineError, match="standard input is closed"):
            stdin.send(b"line\n")
        stdin.close()

    def test_a_container_that_never_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nemo_gym.containers.docker_streams._SEND_TIMEOUT_S", 0.1)
        ours, theirs = socket.socketpair()
        with theirs:
            stdin = SocketStdin(ours)
            with pytest.raises(EngineError, match=r"standard input is not read|timed out"):
                stdin.send(b"x" * 10_000_000)
            stdin.close()

    def test_lines_of_several_threads_stay_whole(self) -> None:
        ours, theirs = socket.socketpair()
        lines = [bytes([65 + number]) * 100_000 + b"\n" for number in range(8)]
        with theirs, theirs.makefile("rb") as reader, ThreadPoolExecutor(9) as pool:
            stdin = SocketStdin(ours)
            read = pool.submit(lambda: [reader.readline() for _ in lines])
            list(pool.map(stdin.send, lines))
            assert sorted(read.result(timeout=5)) == lines
            stdin.close()
