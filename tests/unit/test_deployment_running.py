"""The timeline of a start, and what a running session shows."""

from __future__ import annotations

import logging

import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.deployment.running import Clock, RunningServer, RunningSession


def test_every_phase_once_in_the_order_of_its_end() -> None:
    clock = Clock()
    with clock.measure("servers"), clock.measure("ready", "agent"):
        pass
    inner, outer = clock.phases
    assert (inner.phase, inner.server) == ("ready", "agent")
    assert (outer.phase, outer.server) == ("servers", "")
    assert 0 <= outer.begin_s <= inner.begin_s <= inner.end_s <= outer.end_s


def test_a_phase_that_fails_took_time_as_well(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.DEBUG), pytest.raises(KeyError), clock.measure("create", "agent"):
        raise KeyError
    assert [(phase.phase, phase.server) for phase in clock.phases] == [("create", "agent")]
    assert "agent: create: 0.0" in caplog.text


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("127.0.0.1", 8000, "http://127.0.0.1:8000"),
        ("::1", 8000, "http://[::1]:8000"),
        ("gpu-box", 1, "http://gpu-box:1"),
        (None, None, None),
    ],
)
def test_where_a_server_is(host: str | None, port: int | None, url: str | None) -> None:
    assert RunningServer("agent", "responses_api_agents", "simple_agent", "c1", host, port).url == url


def test_the_token_is_not_shown() -> None:
    address = BaseServerConfig(host="127.0.0.1", port=1, token="t0ken")
    assert "t0ken" not in repr(RunningSession("0a1b2c3d4e", address, (), ()))
