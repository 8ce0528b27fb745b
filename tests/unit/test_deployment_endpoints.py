"""Loopback endpoints are found wherever they stand in a config, and rewritten without touching anything else."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.config.config_types import ServerInstance
from nemo_gym.deployment.endpoints import (
    LoopbackEndpoint,
    config_key_of,
    find_loopback_endpoints,
    rewrite_endpoints,
)

RELAY = ("172.30.0.1", 40000)

HOSTS = ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "0.0.0.0", "[::]", "api.localhost", "10.0.0.1", "example.org"]
URLS = st.builds(
    "{}://{}{}{}{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(["", "user:p%40ss@", "token@"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":1", ":8000", ":65535"]),
    st.sampled_from(["", "/", "/v1", "/v1?a=b&c=d#e"]),
)
SETTINGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | URLS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def found(text: str) -> tuple[str, int] | None:
    endpoints = list(find_loopback_endpoints({"url": text}))
    return (endpoints[0].host, endpoints[0].port) if endpoints else None


def model(name: str, base_url: Any = "http://a/v1", api_key: Any = "k") -> ServerInstance:
    settings = {"openai_base_url": base_url, "openai_api_key": api_key}
    return ServerInstance(name, "responses_api_models", "openai_model", settings)


class TestConfigKeys:
    CONFIG: ClassVar[dict[str, Any]] = {
        "policy_model_name": "m",
        "policy_base_url": "http://a/v1",
        "policy_api_key": "k",
        "judge_api_key": "k",
        "judge_base_url": "http://b/v1",
        "empty": "",
        "port": 8000,
        "policy_model": {"responses_api_models": {}},
    }

    @pytest.mark.parametrize(
        ("instance", "setting", "key"),
        [
            (model("policy_model"), "openai_base_url", "policy_base_url"),
            (model("policy_model"), "openai_api_key", "policy_api_key"),
            (model("judge", "http://b/v1"), "openai_base_url", "judge_base_url"),
            (model("judge_model", "http://b/v1"), "openai_api_key", "judge_api_key"),  # two hold it: its own
            (model("safety_Judge", "http://b/v1"), "openai_base_url", "judge_base_url"),
        ],
    )
    def test_the_one_that_goes_with_the_servers_name(self, instance: ServerInstance, setting: str, key: str) -> None:
        assert config_key_of(self.CONFIG, instance, setting) == key

    @pytest.mark.parametrize("value", ["http://elsewhere/v1", "", None, 8000, ["http://a/v1"]])
    def test_else_the_whole_path(self, value: Any) -> None:
        path = "judge.responses_api_models.openai_model.openai_base_url"
        assert config_key_of(self.CONFIG, model("judge", value), "openai_base_url") == path

    def test_one_that_may_hold_it_by_chance(self) -> None:
        path = "judge.responses_api_models.openai_model.openai_base_url"
        told = config_key_of(self.CONFIG, model("judge"), "openai_base_url")
        assert told == f"{path} (the same value as policy_base_url)"

    def test_what_is_no_setting_stays(self) -> None:
        """A server written elsewhere may name the user's key itself."""
        assert config_key_of(self.CONFIG, model("judge"), "policy_base_url") == "policy_base_url"


class TestFinding:
    @pytest.mark.parametrize(
        ("url", "host_and_port"),
        [
            ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000)),
            ("http://localhost:11434", ("localhost", 11434)),
            ("http://LOCALHOST:8000", ("localhost", 8000)),
            ("HTTP://localhost:8000", ("localhost", 8000)),
            ("http://model.localhost:8000", ("model.localhost", 8000)),
            ("http://localhost", ("localhost", 80)),
            ("https://localhost/v1", ("localhost", 443)),
            ("http://127.5.5.5:1", ("127.5.5.5", 1)),
            ("http://0.0.0.0:8000", ("0.0.0.0", 8000)),
            ("http://[::1]:8000/v1", ("::1", 8000)),
            ("http://[::]:8000/v1", ("::", 8000)),
            ("http://[::ffff:127.0.0.1]:8000", ("::ffff:127.0.0.1", 8000)),
            ("http://user:secret@127.0.0.1:8000", ("127.0.0.1", 8000)),
        ],
    )
    def test_on_this_machine(self, url: str, host_and_port: tuple[str, int]) -> None:
        assert found(url) == host_and_port

    @pytest.mark.parametrize(
        "text",
        [
            "http://example.org:8000",
            "http://10.0.0.1:8000",
            "http://localhost.example.org",
            "http://notlocalhost",
            "http://example.org/?next=http://127.0.0.1:8000",
            "http://127.0.0.1@example.org/",
            "http://[fe80::1]:80",
            "http://localhost:port",
            "http://localhost:99999",
            "http://[::1:8000",
            "http://",
            "127.0.0.1:8000",
            "ftp://127.0.0.1",
            "see http://127.0.0.1:8000",
            "???",
            "",
        ],
    )
    def test_elsewhere_or_no_url(self, text: str) -> None:
        assert found(text) is None

    def test_everywhere_in_order_with_the_way_to_it(self) -> None:
        settings = {
            "base_url": "http://127.0.0.1:1/v1",
            "judge": {"urls": ["http://10.0.0.1", "http://localhost:2", {"url": "http://[::1]:3"}], "n": 4},
            "last": "http://127.0.0.1:1/v2",
            "http://127.0.0.1:9": "a key is no endpoint",
        }
        assert list(find_loopback_endpoints(settings)) == [
            LoopbackEndpoint("base_url", "http://127.0.0.1:1/v1", "127.0.0.1", 1),
            LoopbackEndpoint("judge.urls[1]", "http://localhost:2", "localhost", 2),
            LoopbackEndpoint("judge.urls[2].url", "http://[::1]:3", "::1", 3),
            LoopbackEndpoint("last", "http://127.0.0.1:1/v2", "127.0.0.1", 1),
        ]


class TestRewriting:
    @pytest.mark.parametrize(
        ("url", "rewritten"),
        [
            ("http://127.0.0.1:8000/v1", "http://172.30.0.1:40000/v1"),
            ("http://localhost", "http://172.30.0.1:40000"),
            ("https://[::1]:8000/v1?a=b#c", "https://172.30.0.1:40000/v1?a=b#c"),
            ("http://user:p%40ss@127.0.0.1:8000/", "http://user:p%40ss@172.30.0.1:40000/"),
            ("http://a@b@127.0.0.1:8000/", "http://a@b@172.30.0.1:40000/"),
        ],
    )
    def test_only_host_and_port_change(self, url: str, rewritten: str) -> None:
        address = found(url)
        assert address is not None
        assert rewrite_endpoints(url, {address: RELAY}) == rewritten

    def test_to_an_ipv6_address(self) -> None:
        assert rewrite_endpoints("http://localhost:1/v1", {("localhost", 1): ("fd00::1", 2)}) == "http://[fd00::1]:2/v1"

    def test_each_to_its_own(self) -> None:
        settings = {"a": "http://127.0.0.1:1", "b": ["http://localhost:1", "http://127.0.0.1:2"], "c": ("x", 1.5)}
        addresses = {("127.0.0.1", 1): ("g", 11), ("localhost", 1): ("g", 12)}
        assert rewrite_endpoints(settings, addresses) == {
            "a": "http://g:11",
            "b": ["http://g:12", "http://127.0.0.1:2"],
            "c": ("x", 1.5),
        }

    @given(SETTINGS)
    def test_idempotent_and_without_side_effect(self, settings: Any) -> None:
        addresses = {(e.host, e.port): RELAY for e in find_loopback_endpoints(settings)}
        before = copy.deepcopy(settings)
        once = rewrite_endpoints(settings, addresses)
        assert settings == before
        assert list(find_loopback_endpoints(once)) == []
        assert rewrite_endpoints(once, addresses) == once
        if not addresses:
            assert once == settings

    @given(SETTINGS)
    def test_nothing_to_rewrite_changes_nothing(self, settings: Any) -> None:
        assert rewrite_endpoints(settings, {}) == settings
