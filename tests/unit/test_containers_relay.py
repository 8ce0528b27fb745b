"""The relay carries bytes both ways unchanged, at the pace of the slower side, for peers of one subnet only."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nemo_gym.containers import relay
from nemo_gym.containers.relay import Target, bind_listener
from nemo_gym.errors import ConfigError

LOOPBACK = "127.0.0.0/8"
BIG = os.urandom(1 << 20) * 24

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def target_doing(serve: Serve) -> AsyncIterator[Target]:
    """A server on this machine's loopback."""
    errors: list[BaseException] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except Exception as error:
            errors.append(error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()
    assert errors == []


@contextlib.asynccontextmanager
async def relayed(target: Target, subnet: str = LOOPBACK) -> AsyncIterator[int]:
    """The port of a relay to ``target``."""
    # on any port: on the one of a target that is gone, the relay would be its own target
    listener = bind_listener("127.0.0.1", Target("127.0.0.1", 0))
    listener.setblocking(False)
    server = await relay.serve(listener, target, subnet)
    try:
        yield listener.getsockname()[1]
    finally:
        relay.close_all([server])
        await server.wait_closed()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def connected(
    port: int, source: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def digest_then_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads to the end of the input, answers with its hash and the input itself."""
    body = await reader.read()
    writer.write(hashlib.sha256(body).digest() + body)
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


class TestCarrying:
    async def test_large_bodies_both_ways_and_half_close(self) -> None:
        """The end of the request reaches the server while the way back is still open."""
        async with (
            target_doing(digest_then_body) as target,
            relayed(target) as port,
            connected(port) as (reader, writer),
        ):
            writer.write(BIG)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 20)
        assert answer[:32] == hashlib.sha256(BIG).digest()
        assert answer[32:] == BIG

    async def test_both_ways_at_once(self) -> None:
        async with target_doing(echo) as target, relayed(target) as port, connected(port) as (reader, writer):

            async def send() -> None:
                for begin in range(0, len(BIG), 1 << 18):
                    writer.write(BIG[begin : begin + (1 << 18)])
                    await writer.drain()
                writer.write_eof()

            _, echoed = await asyncio.wait_for(asyncio.gather(send(), reader.read()), 20)
        assert echoed == BIG

    async def test_a_conversation(self) -> None:
        async with target_doing(echo) as target, relayed(target) as port, connected(port) as (reader, writer):
            for number in range(50):
                writer.write(b"%d\n" % number)
                assert await asyncio.wait_for(reader.readline(), 5) == b"%d\n" % number

    async def test_a_server_that_speaks_first_and_hangs_up(self) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 hello\r\n")
            await writer.drain()

        async with target_doing(greet) as target, relayed(target) as port, connected(port) as (reader, _):
            assert await asyncio.wait_for(reader.read(), 5) == b"220 hello\r\n"

    async def test_a_server_that_ends_its_side_first_still_hears_the_rest(self) -> None:
        heard: list[bytes] = []

        async def half_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"done")
            writer.write_eof()
            heard.append(await reader.read())

        async with target_doing(half_close) as target, relayed(target) as port, connected(port) as (reader, writer):
            assert await asyncio.wait_for(reader.read(), 5) == b"done"
            writer.write(b"the rest")
            writer.write_eof()
            await asyncio.wait_for(until(lambda: heard == [b"the rest"]), 5)

    async def test_a_client_that_vanishes_ends_the_servers_side(self) -> None:
        ended = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            ended.set()

        async with target_doing(listen) as target, relayed(target) as port, connected(port) as (_, writer):
            writer.write(b"x")
            await writer.drain()
            writer.transport.abort()
            await asyncio.wait_for(ended.wait(), 5)

    async def test_sixty_four_streams_at_once(self) -> None:
        """All are open at the same time: the server answers nobody before the last has come."""
        bodies = [os.urandom(200_000) for _ in range(64)]
        all_here = asyncio.Event()
        here = 0

        async def together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal here
            here += 1
            if here == len(bodies):
                all_here.set()
            await all_here.wait()
            await digest_then_body(reader, writer)

        async with target_doing(together) as target, relayed(target) as port:

            async def one(body: bytes) -> bytes:
                async with connected(port) as (reader, writer):
                    writer.write(body)
                    writer.write_eof()
                    return await reader.read()

            answers = await asyncio.wait_for(asyncio.gather(*map(one, bodies)), 20)
        assert answers == [hashlib.sha256(body).digest() + body for body in bodies]

    async def test_sixty_four_conversations_do_not_wait_for_a_long_answer_beside_them(self) -> None:
        """Each word of a stream arrives before the next is asked for, while large bodies go both ways."""
        async with target_doing(echo) as words, relayed(words) as port:

            async def converse(speaker: int) -> int:
                async with connected(port) as (reader, writer):
                    for number in range(30):
                        writer.write(b"%d says %d\n" % (speaker, number))
                        assert await reader.readline() == b"%d says %d\n" % (speaker, number)
                    return speaker

            async def haul() -> bytes:
                async with (
                    target_doing(digest_then_body) as bulk,
                    relayed(bulk) as bulk_port,
                    connected(bulk_port) as (reader, writer),
                ):
                    writer.write(BIG)
                    writer.write_eof()
                    return await reader.read()

            *speakers, hauled = await asyncio.wait_for(asyncio.gather(*map(converse, range(64)), haul()), 30)
        assert speakers == list(range(64))
        assert hauled == hashlib.sha256(BIG).digest() + BIG

    async def test_no_more_than_the_buffers_is_taken_for_a_slow_reader(self) -> None:
        """Backpressure: what the reader does not take stays with the sender, not in the relay's memory."""
        taken = 0
        chunk = b"x" * (1 << 16)

        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal taken
            with contextlib.suppress(ConnectionError):
                for _ in range(4096):  # 256 MiB
                    writer.write(chunk)
                    await writer.drain()
                    taken += len(chunk)

        async with target_doing(flood) as target, relayed(target) as port, connected(port) as (reader, writer):
            assert await reader.readexactly(10) == b"x" * 10
            before = -1
            while before != taken:  # until the flood stands still
                before = taken
                await asyncio.sleep(0.1)
            assert taken < 64 << 20
            await reader.readexactly(32 << 20)  # it goes on where it stood
            await asyncio.wait_for(until(lambda: taken > before), 5)
            writer.transport.abort()

    async def test_nor_for_a_server_that_reads_slowly(self) -> None:
        go_on = asyncio.Event()
        read = 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal read
            await go_on.wait()
            while data := await reader.read(1 << 20):
                read += len(data)

        sent = 0

        async def flood(writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            for _ in range(1024):  # 64 MiB
                writer.write(b"x" * (1 << 16))
                await writer.drain()
                sent += 1 << 16
            writer.write_eof()

        async with target_doing(slow) as target, relayed(target) as port, connected(port) as (_, writer):
            flooding = asyncio.create_task(flood(writer))
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.1)
            assert sent < 48 << 20
            go_on.set()
            await asyncio.wait_for(flooding, 10)
            await asyncio.wait_for(until(lambda: read == 64 << 20), 10)


class TestRefusing:
    async def test_nobody_listens_at_the_target(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            target = Target("127.0.0.1", server.getsockname()[1])
        async with relayed(target) as port, connected(port) as (reader, writer):
            assert await is_hung_up_on(reader, writer)

    async def test_a_name_that_does_not_resolve(self) -> None:
        async with relayed(Target("nowhere.invalid", 1)) as port, connected(port) as (reader, writer):
            assert await is_hung_up_on(reader, writer)

    async def test_peers_from_outside_of_the_subnet(self) -> None:
        connections = 0

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await echo(reader, writer)

        async with target_doing(count) as target, relayed(target, "127.0.0.8/29") as port:
            for source in ("127.0.0.7", "127.0.0.16", "127.0.0.1"):
                async with connected(port, source) as (reader, writer):
                    assert await is_hung_up_on(reader, writer)
            assert connections == 0
            async with connected(port, "127.0.0.9") as (reader, writer):
                assert await talk(reader, writer) == b"hello"
        assert connections == 1

    async def test_the_relay_survives_every_refusal(self) -> None:
        async with target_doing(echo) as target, relayed(target) as port:
            for _ in range(20):
                async with connected(port) as (_, writer):
                    writer.transport.abort()
            async with connected(port) as (reader, writer):
                assert await talk(reader, writer) == b"hello"


class TestListener:
    def test_the_targets_own_port_where_it_is_free(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with bind_listener("127.0.0.2", Target("127.0.0.1", port)) as listener:
                assert listener.getsockname() == ("127.0.0.2", port)

    def test_another_port_where_it_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with bind_listener("127.0.0.1", Target("127.0.0.1", port)) as listener:
                assert listener.getsockname()[0] == "127.0.0.1"
                assert listener.getsockname()[1] not in (0, port)

    def test_a_gateway_that_is_elsewhere(self) -> None:
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1:8000.*192\.0\.2\.1 is not an address of this machine"):
            bind_listener("192.0.2.1", Target("127.0.0.1", 8000))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 (what is waited for is a plain value)
        await asyncio.sleep(0.005)


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"hello")
    await writer.drain()
    return await asyncio.wait_for(reader.readexactly(5), 5)


async def is_hung_up_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection ends without an answer."""
    try:
        writer.write(b"hello")
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True
