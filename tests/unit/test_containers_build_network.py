"""Builds get this host's proxies and package indexes, and the parts of them that are secret are known."""

from __future__ import annotations

import os

import pytest

from nemo_gym.containers.build_network import build_network, find_build_network, parse_pip_config
from nemo_gym.errors import ConfigError

PROXY = "http://me:pass-word@proxy.example:3128"


def test_nothing_set() -> None:
    network = build_network({}, {})
    assert network.build_args == {}
    assert network.secrets == ()


def test_proxies_in_both_cases() -> None:
    network = build_network({"https_proxy": PROXY, "NO_PROXY": "localhost,.example", "ALL_PROXY": PROXY}, {})
    assert network.build_args == {
        "HTTPS_PROXY": PROXY,
        "https_proxy": PROXY,
        "NO_PROXY": "localhost,.example",
        "no_proxy": "localhost,.example",
    }
    assert network.secrets == ("pass-word",)
    assert network.redact(f"via {PROXY}") == "via http://me:****@proxy.example:3128"
    assert "pass-word" not in repr(network)


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:3128", "localhost:3128", "http://[::1]:1"])
def test_a_proxy_on_the_loopback_is_not_one_of_a_build(proxy: str, caplog: pytest.LogCaptureFixture) -> None:
    assert build_network({"HTTP_PROXY": proxy}, {}).build_args == {}
    (warned,) = caplog.records
    assert warned.levelname == "WARNING"
    assert warned.getMessage().startswith("HTTP_PROXY (")
    assert warned.getMessage().endswith(") is on this machine alone and is left out of builds")


@pytest.mark.parametrize("password", ["p[w", "p]w", "p/w", "p#w", "p?w"])
def test_a_password_that_is_not_quoted(password: str) -> None:
    """It could not be told from the rest, and so not be kept out of images."""
    with pytest.raises(ConfigError, match=r"^HTTPS_PROXY is no address that can be read: .* %5B for \[,") as caught:
        build_network({"https_proxy": f"http://user:{password}@proxy.example:3128"}, {})
    assert password not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^pip's extra-index-url is no address"):
        build_network({}, {"extra-index-url": f"https://two.example/ https://user:{password}@one.example/simple"})
    quoted = "".join(f"%{ord(char):02X}" if not char.isalpha() else char for char in password)
    proxy = f"http://user:{quoted}@proxy.example:3128"
    assert build_network({"HTTPS_PROXY": proxy}, {}).secrets == (quoted,)


@pytest.mark.parametrize("hosts", ["[::1", "localhost,[fe80::1%eth0],[::1]", "*.example,10.0.0.0/8,me:pw@x"])
def test_what_needs_no_proxy_is_handed_on_as_it_is(hosts: str) -> None:
    network = build_network({"NO_PROXY": hosts}, {})
    assert network.build_args == {"NO_PROXY": hosts, "no_proxy": hosts}
    assert network.secrets == ()


def test_indexes() -> None:
    pip = {
        "index-url": "https://token@one.example/simple",
        "extra-index-url": "file:///x https://two.example/\nftp://x",
    }
    network = build_network({}, pip)
    assert network.build_args == {
        "PIP_INDEX_URL": "https://token@one.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://two.example/ ftp://x",
    }
    assert network.secrets == ("token",)


def test_what_pip_lists() -> None:
    listed = """\
:env:.index-url='https://from-env.example/'
global.index-url='https://global.example/'
install.extra-index-url='https://install.example/'
global.extra-index-url='https://global.example/'
download.index-url='https://download.example/'
global.broken=not quoted
a line of something else
"""
    assert parse_pip_config(listed) == {
        "index-url": "https://from-env.example/",
        "extra-index-url": "https://install.example/",
    }


def test_this_hosts_pip_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**os.environ, "PIP_INDEX_URL": "https://asked.example/simple"}
    assert find_build_network(environ).build_args["PIP_INDEX_URL"] == "https://asked.example/simple"
    monkeypatch.setattr("sys.executable", "/does/not/exist")
    assert "PIP_INDEX_URL" not in find_build_network(environ).build_args
