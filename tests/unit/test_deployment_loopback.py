"""The relays of a session: a listener per loopback endpoint, handed to the keeper, and told apart in messages."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from nemo_gym.containers.engine import Endpoint, NetworkState
from nemo_gym.containers.relay import Target
from nemo_gym.deployment.loopback import LoopbackRelays
from nemo_gym.errors import ConfigError
from tests.unit.fake_engine import LOCAL

NETWORK = NetworkState("n1", "n", gateway="127.0.0.1", subnet="127.0.0.0/8")
REMOTE = Endpoint(url="tcp://far:2375", source="DOCKER_HOST", dial_host="far", is_local=False)


class FakeKeeper:
    """Keeps what it was handed, for as long as the test's copies live."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.addresses: list[tuple[str, int]] = []
        self.subnet = ""

    def carry(self, listeners: Sequence[tuple[socket.socket, Target]], subnet: str) -> None:
        self.targets = [target for _, target in listeners]
        self.addresses = [listener.getsockname() for listener, _ in listeners]
        self.subnet = subnet


def opened(*targets: tuple[str, int]) -> tuple[LoopbackRelays, FakeKeeper]:
    relays, keeper = LoopbackRelays(targets), FakeKeeper()
    relays.open(NETWORK, keeper)  # type: ignore[arg-type]
    return relays, keeper


def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class TestOpen:
    def test_one_listener_per_target_on_the_gateway(self) -> None:
        relays, keeper = opened(("localhost", 1), ("0.0.0.0", 2), ("::", 3), ("127.0.0.1", 4))
        assert keeper.targets == [
            Target("localhost", 1),
            Target("127.0.0.1", 2),  # where a server that listens everywhere is called
            Target("::1", 3),
            Target("127.0.0.1", 4),
        ]
        assert keeper.subnet == "127.0.0.0/8"
        assert list(relays.addresses.values()) == keeper.addresses
        assert list(relays.addresses) == [("localhost", 1), ("0.0.0.0", 2), ("::", 3), ("127.0.0.1", 4)]

    def test_nothing_to_relay(self) -> None:
        relays, keeper = opened()
        assert (dict(relays.addresses), keeper.targets) == ({}, [])

    def test_a_network_that_is_elsewhere(self) -> None:
        relays = LoopbackRelays([("127.0.0.1", 1)])
        elsewhere = NetworkState("n1", "n", gateway="192.0.2.1", subnet="192.0.2.0/24")
        with pytest.raises(ConfigError, match=r"192\.0\.2\.1 is not an address of this machine"):
            relays.open(elsewhere, FakeKeeper())  # type: ignore[arg-type]


class TestCheck:
    def test_a_remote_engine_cannot_reach_this_machines_loopback(self) -> None:
        with pytest.raises(ConfigError) as caught:
            LoopbackRelays([("127.0.0.1", 8000), ("localhost", 9000)]).check(REMOTE)
        assert "endpoints on this machine's loopback (127.0.0.1:8000, localhost:9000)" in str(caught.value)
        assert "the engine at tcp://far:2375 is on another machine" in str(caught.value)

    def test_otherwise_all_is_well(self) -> None:
        LoopbackRelays([("127.0.0.1", 8000)]).check(LOCAL)
        LoopbackRelays([]).check(REMOTE)


class TestAsTheCallerSees:
    def test_what_does_not_answer_comes_first(self) -> None:
        port = dead_port()
        relays, keeper = opened(("127.0.0.1", port))
        relay = "{}:{}".format(*keeper.addresses[0])
        said = f"GET http://{relay}/v1/models cannot be sent: [Errno 104] Connection reset by peer"
        assert relays.as_the_caller_sees(said) == (
            f"nothing listens on 127.0.0.1:{port} on this machine "
            f"(GET http://127.0.0.1:{port}/v1/models cannot be sent: [Errno 104] Connection reset by peer)"
        )

    def test_what_does_is_named_as_in_the_config(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            relays, keeper = opened(("localhost", port))
            relay = "{}:{}".format(*keeper.addresses[0])
            assert relays.as_the_caller_sees(f"HTTP 401 to GET http://{relay}/v1/models") == (
                f"HTTP 401 to GET http://localhost:{port}/v1/models"
            )
            told = relays.as_the_caller_sees(f"the certificate of https://{relay} is not accepted: no match")
        assert told.startswith(f"the certificate of https://localhost:{port} is not accepted: no match. Containers see")
        assert "http://" in told

    def test_ipv6_in_brackets(self) -> None:
        relays, keeper = opened(("::1", 1))
        relay = "{}:{}".format(*keeper.addresses[0])
        assert "http://[::1]:1/v1" in relays.as_the_caller_sees(f"GET http://{relay}/v1")

    def test_addresses_that_only_begin_or_end_alike(self) -> None:
        relays, keeper = opened(("localhost", 1))
        relay = "{}:{}".format(*keeper.addresses[0])
        for text in (f"http://{relay}0/v1", f"http://10.{relay}/v1", "http://127.0.0.1/v1", ""):
            assert relays.as_the_caller_sees(text) == text
