"""What the registry is told: the host view without secrets, then every death, each as one line."""

from __future__ import annotations

import datetime
import json
import threading
from typing import Any

import pytest
import yaml

from nemo_gym.containers.deaths import Death
from nemo_gym.deployment.registry_feed import RegistryFeed
from nemo_gym.deployment.topology import build_topology
from nemo_gym.errors import EngineError, EngineUnavailableError
from tests.unit.fake_engine import FakeStdin

CONFIG: dict[str, Any] = {
    "policy_api_key": "sk-policy-0123",
    "greeting": "Grüße: ${not.an.interpolation}",
    "model": {
        "responses_api_models": {
            "openai_model": {
                "entrypoint": "app.py",
                "openai_api_key": "sk-policy-0123",
                "openai_base_url": "http://user:pw-0123456@127.0.0.1:8000/v1",
                "max_output_tokens": 5,
            }
        }
    },
}
ADDRESSES = {"model": ("127.0.0.1", 32768), "registry": ("127.0.0.1", 11000)}


def lines(stdin: FakeStdin) -> list[dict[str, Any]]:
    assert stdin.sent.endswith(b"\n")
    return [json.loads(line) for line in stdin.sent.splitlines()]


class TestHostView:
    def sent(self) -> dict[str, Any]:
        stdin = FakeStdin()
        RegistryFeed(stdin).send_host_view(build_topology(CONFIG), ADDRESSES)
        (message,) = lines(stdin)
        return message

    def test_what_is_in_it(self) -> None:
        message = self.sent()
        assert set(message) == {"type", "config_yaml", "server_instances"}
        assert message["type"] == "host_view"
        config = yaml.safe_load(message["config_yaml"])
        assert list(config) == ["policy_api_key", "greeting", "model", "head_server"]
        assert config["head_server"] == {"host": "127.0.0.1", "port": 11000}
        model = config["model"]["responses_api_models"]["openai_model"]
        assert (model["host"], model["port"], model["max_output_tokens"]) == ("127.0.0.1", 32768, 5)

    def test_no_secret(self) -> None:
        text = self.sent()["config_yaml"]
        assert "sk-policy" not in text
        assert "pw-0123456" not in text
        config = yaml.safe_load(text)
        assert config["policy_api_key"] == "***"
        assert "127.0.0.1:8000/v1" in config["model"]["responses_api_models"]["openai_model"]["openai_base_url"]

    def test_instances(self) -> None:
        (entry,) = self.sent()["server_instances"]
        started = datetime.datetime.fromisoformat(entry.pop("start_time"))
        assert datetime.datetime.now(datetime.UTC) - started < datetime.timedelta(minutes=1)
        assert entry == {
            "name": "model",
            "process_name": "model",
            "server_type": "responses_api_models",
            "implementation": "openai_model",
            "host": "127.0.0.1",
            "port": 32768,
            "url": "http://127.0.0.1:32768",
            "status": "running",
        }

    def test_a_registry_that_is_gone_is_an_error(self) -> None:
        feed = RegistryFeed(FakeStdin(EngineError("closed")))
        with pytest.raises(EngineError):
            feed.send_host_view(build_topology(CONFIG), ADDRESSES)


class TestDeaths:
    @pytest.mark.parametrize(
        ("death", "told"),
        [
            (
                Death("id", 137, True, ""),
                {"exit_code": 137, "oom_killed": True, "detail": "killed for using too much memory"},
            ),
            (Death("id", 3, False, ""), {"exit_code": 3, "oom_killed": False, "detail": "its process ended"}),
            (Death("id", None, False, "gone"), {"exit_code": None, "oom_killed": False, "detail": "gone"}),
        ],
    )
    def test_told(self, death: Death, told: dict[str, Any]) -> None:
        stdin = FakeStdin()
        RegistryFeed(stdin).send_death("model", death, "")
        assert lines(stdin) == [{"type": "server_died", "name": "model", **told}]

    def test_with_the_end_of_its_log(self) -> None:
        stdin = FakeStdin()
        RegistryFeed(stdin).send_death("model", Death("id", 3, False, ""), "one\nZwei: Grüße")
        (message,) = lines(stdin)
        assert message["detail"] == "its process ended; the end of its log: one\nZwei: Grüße"

    def test_a_registry_that_is_gone_stops_nobody(self) -> None:
        RegistryFeed(FakeStdin(EngineError("closed"))).send_death("model", Death("id", 1, False, ""), "")

    def test_an_engine_that_is_away_stops_nobody(self) -> None:
        RegistryFeed(FakeStdin(EngineUnavailableError("gone"))).send_death("model", Death("id", 1, False, ""), "")

    def test_not_after_the_end(self) -> None:
        stdin = FakeStdin()
        feed = RegistryFeed(stdin)
        feed.close()
        feed.close()
        feed.send_death("model", Death("id", 1, False, ""), "")
        assert (stdin.sent, stdin.closed) == (b"", 1)

    def test_several_at_once_are_lines_of_their_own(self) -> None:
        stdin = FakeStdin()
        feed = RegistryFeed(stdin)
        names = [f"server{number}" for number in range(16)]
        threads = [threading.Thread(target=feed.send_death, args=(n, Death(n, 0, False, "x" * 500), "")) for n in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(message["name"] for message in lines(stdin)) == sorted(names)
