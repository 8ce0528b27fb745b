from __future__ import annotations

import json
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.registry_client import (
    DeadServer,
    RegistryAddress,
    base_url,
    parse_dead_servers,
    parse_host_view,
)
from nemo_gym.rollouts.replies import Failure, failure_error, find_culprit, judge_reply, tail_of
from tests.unit.fake_gym import FakeGym


def judged(reply: Any, status: int = 200) -> Failure | None:
    return judge_reply("agent", status, json.dumps(reply).encode()).failure


class TestJudgeReply:
    @pytest.mark.parametrize("reward", [0, 1, -2.5, 0.0, 1e-300])
    def test_a_number_is_a_reward(self, reward: float) -> None:
        outcome = judge_reply("agent", 200, json.dumps({"reward": reward, "more": 1}).encode())
        assert (outcome.reward, outcome.failure) == (reward, None)
        assert isinstance(outcome.reward, float)
        assert outcome.reply == {"reward": reward, "more": 1}

    @pytest.mark.parametrize(
        ("status", "retryable"),
        [(400, False), (401, False), (404, False), (408, True), (422, False), (429, True), (500, True), (503, True)],
    )
    def test_only_errors_of_the_machinery_are_worth_another_attempt(self, status: int, retryable: bool) -> None:
        failure = judged({"error": "x"}, status)
        assert failure is not None
        assert (failure.failure_class, failure.status, failure.retryable) == ("http_error", status, retryable)

    @pytest.mark.parametrize(
        ("behind", "retryable"),
        [(400, False), (401, False), (404, False), (429, True), (500, True), (200, True), (None, True)],
    )
    def test_what_a_server_behind_refused_is_not_asked_again(self, behind: int | None, retryable: bool) -> None:
        failure = judged({"error": {"server": "policy_model", "status": behind}}, 502)
        assert failure is not None
        assert (failure.server, failure.status, failure.retryable) == ("policy_model", 502, retryable)

    def test_answers_are_never_tried_again(self) -> None:
        for reply in ({"reward": "x"}, {}, [1], "text"):
            failure = judged(reply)
            assert failure is not None
            assert not failure.retryable

    def test_a_marked_reply_is_kept_and_tried_again_unless_it_says_not_to(self) -> None:
        outcome = judge_reply("agent", 200, b'{"reward": 1, "_ng_failure_class": "judge_timeout"}')
        assert outcome.reply is not None
        assert outcome.reward is None
        assert outcome.failure is not None
        assert (outcome.failure.failure_class, outcome.failure.retryable) == ("judge_timeout", True)
        terminal = judged({"reward": 1, "_ng_failure_terminal": True})
        assert terminal is not None
        assert (terminal.failure_class, terminal.retryable) == ("marked_failed", False)

    def test_deeply_nested_json_is_a_failure_and_not_a_crash(self) -> None:
        outcome = judge_reply("agent", 200, b"[" * 200_000)
        assert outcome.failure is not None
        assert outcome.failure.failure_class == "bad_reply"


def test_the_blamed_server_is_read_from_the_error_body() -> None:
    assert find_culprit(b'{"error": {"server": "policy_model"}}') == ("policy_model", None)
    assert find_culprit(b'{"error": {"server": "policy_model", "status": 400}}') == ("policy_model", 400)
    for body in (b"", b"[]", b'{"error": "x"}', b'{"error": {"server": 3}}', b'{"error": {}}', b"\xff"):
        assert find_culprit(body) == (None, None)


def test_the_tail_is_short_and_survives_bytes_that_are_no_text() -> None:
    assert tail_of(b" short ") == "short"
    assert tail_of(b"a" * 9000 + b"end").startswith("…a")
    assert len(tail_of(b"\xff" * 9000)) == 2001


def test_the_error_says_who_what_and_how_many() -> None:
    failure = Failure("http_error", "answered HTTP 500.", "agent", 500, "the body")
    error = failure_error(failure, task_id="t", repeat=1, results=[{"reward": 1}, None], failed=1)
    assert str(error) == (
        "Task 't', repeat 1: server 'agent' answered HTTP 500.\nThe end of its answer: the body\n"
        "1 of 2 repeats failed; the others' replies are in the error's results."
    )
    assert (error.task_id, error.repeat, error.server, error.status) == ("t", 1, "agent", 500)
    assert error.results == [{"reward": 1}, None]


class TestHostView:
    def served(self, config: Any) -> bytes:
        import yaml

        return json.dumps(yaml.safe_dump(config)).encode()

    def test_agents_and_all_they_need(self) -> None:
        gym = FakeGym(port=5)
        config = gym.host_view()
        judge_ref = [{"type": "responses_api_models", "name": "judge"}]
        config["verifier"]["resources_servers"]["mcqa"]["judges"] = judge_ref
        view = parse_host_view(self.served(config), "http://x")
        assert view.agent_urls == {"agent": "http://127.0.0.1:5"}
        assert view.needed_by("agent") == {"agent", "verifier", "policy_model", "judge"}
        assert view.needed_by("policy_model") == {"policy_model"}

    def test_servers_that_call_each_other(self) -> None:
        def agent(other: str) -> dict[str, Any]:
            ref = {"type": "responses_api_agents", "name": other}
            return {"responses_api_agents": {"x": {"host": "::1", "port": 1, "other": ref}}}

        view = parse_host_view(self.served({"a": agent("b"), "b": agent("a")}), "http://x")
        assert view.needed_by("a") == {"a", "b"}
        assert view.agent_urls["a"] == "http://[::1]:1"

    @pytest.mark.parametrize("body", [b"<html>", b'"{unclosed"', b'"text"', b"[]", b'"- a"'])
    def test_what_is_no_config(self, body: bytes) -> None:
        with pytest.raises(ConfigError, match="http://x"):
            parse_host_view(body, "http://x")


class TestDeadServers:
    def test_only_the_dead_are_listed(self) -> None:
        body = json.dumps(
            [
                {"name": "a", "status": "running"},
                {"name": "b", "status": "dead", "exit_code": 137, "oom_killed": True, "detail": "its log"},
                {"name": "c", "status": "dead"},
                "odd",
            ]
        ).encode()
        assert parse_dead_servers(body) == [DeadServer("b", 137, True, "its log"), DeadServer("c")]

    @pytest.mark.parametrize("body", [b"", b"{}", b"null"])
    def test_what_is_no_list(self, body: bytes) -> None:
        assert parse_dead_servers(body) is None

    def test_how_one_died_in_words(self) -> None:
        assert DeadServer("a").describe() == "died."
        assert DeadServer("a", 1, False, "its log").describe() == "died (exit code 1): its log."
        assert "memory limit" in DeadServer("a", 137, True).describe()


def test_addresses() -> None:
    assert base_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert base_url("::1", 80) == base_url("[::1]", 80) == "http://[::1]:80"
    assert RegistryAddress("h", 1).headers == {}
    assert RegistryAddress("h", 1, "t").headers == {"Authorization": "Bearer t"}
    assert "secret" not in repr(RegistryAddress("h", 1, "secret"))
