from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.environment.reverified import begin_reverified_files, finish_reverified_files
from nemo_gym.environment.stored_runs import name_task, read_run
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts import verification
from nemo_gym.rollouts.results import ResultPaths
from nemo_gym.rollouts.reverify import Reverification, Verdict, agents_in, replies_of
from nemo_gym.rollouts.verification import Verifier, VerifierClient, open_verifier_client
from nemo_gym.servers.testing import serving_app
from tests.support.stored_results import AGENT_REF, failure, result, row, write_results


class FakeVerifier:
    """A resources server that gives a reward of 1 for task 1 only, and does with others what a test asks."""

    def __init__(self) -> None:
        self.mode: Any = "stateless"
        self.asked: list[dict[str, Any]] = []
        self.at_once = self.most_at_once = 0
        self.fails: dict[int, list[tuple[int, Any]]] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/reverify_mode", self._mode)
        app.router.add_post("/verify", self._verify)
        app.router.add_post("/aggregate_metrics", self._aggregate)
        return app

    async def _mode(self, request: web.Request) -> web.Response:
        return web.json_response(self.mode, status=404 if self.mode is None else 200)

    async def _verify(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            planned = self.fails.get(body["_ng_task_index"])
            if planned:
                status, reply = planned.pop(0)
                return web.json_response(reply, status=status)
            return web.json_response({**body, "reward": float(body["_ng_task_index"] == 1), "why": "now"})
        finally:
            self.at_once -= 1

    async def _aggregate(self, request: web.Request) -> web.Response:
        replies = (await request.json())["verify_responses"]
        return web.json_response({"key_metrics": {"mean/reward": sum(r["reward"] for r in replies) / len(replies)}})


@pytest.fixture
async def fake() -> FakeVerifier:
    return FakeVerifier()


@pytest.fixture
async def verifier(fake: FakeVerifier) -> AsyncIterator[Verifier]:
    async with serving_app(fake.app()) as url:
        yield Verifier("demo_server", url)


@pytest.fixture
async def client() -> AsyncIterator[VerifierClient]:
    async with open_verifier_client() as opened:
        yield opened


async def reverify(
    path: Path, verifier: Verifier, client: VerifierClient, output: Path | None = None, concurrency: int = 4
) -> tuple[list[Verdict], list[str]]:
    work = Reverification(
        ResultPaths(path),
        {"demo_agent": verifier},
        name_task,
        output=None if output is None else ResultPaths(output),
        redact=lambda text: text.replace("sk-key", "***"),
    )
    verdicts: list[Verdict] = []
    await work.check(client)
    await work.run(client, concurrency, verdicts.append)
    return sorted(verdicts, key=lambda verdict: (verdict.task_index, verdict.repeat)), work.notices


async def test_rows_and_responses_are_verified_again(
    tmp_path: Path, fake: FakeVerifier, verifier: Verifier, client: VerifierClient
) -> None:
    results = [result(task, 0, 0.0, why="then", _ng_rollout_id=f"r{task}") for task in range(2)]
    path = write_results(tmp_path / "x.jsonl", results, [failure(2)], [row(task, answer="B") for task in range(3)])
    verdicts, notices = await reverify(path, verifier, client, tmp_path / "new.jsonl")
    assert notices == []
    assert [(v.task, v.before, v.after, v.has_changed) for v in verdicts] == [
        ("t0", 0.0, 0.0, False),
        ("t1", 0.0, 1.0, True),
    ]
    assert verdicts[1].fields == {"why": ("then", "now")}
    # what was verified is the row as it was sent, with the response, and nothing that the verifier had said
    sent = sorted(fake.asked, key=lambda body: int(body["_ng_task_index"]))
    timed = {"_ng_elapsed_s": 1.0, "_ng_rollout_id": "r0"}
    assert sent[0] == {**row(0, answer="B"), "response": results[0]["response"], **timed}
    new = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text(encoding="utf-8").splitlines()]
    assert new[1] == {**results[1], "answer": "B", "reward": 1.0, "why": "now"}


async def test_without_inputs_the_replies_stand_for_the_rows(
    tmp_path: Path, fake: FakeVerifier, verifier: Verifier, client: VerifierClient
) -> None:
    path = write_results(tmp_path / "x.jsonl", [result(1, 0, 1.0)])
    verdicts, notices = await reverify(path, verifier, client)
    assert [v.has_changed for v in verdicts] == [False]
    assert "the rows are taken from the replies" in notices[0]
    assert "reward" not in fake.asked[0]
    assert not (tmp_path / "new.jsonl").exists()


async def test_what_cannot_be_verified_is_a_failure_and_never_a_reward(
    tmp_path: Path, fake: FakeVerifier, verifier: Verifier, client: VerifierClient
) -> None:
    fake.fails = {
        0: [(422, {"error": {"message": "key sk-key"}})],
        1: [(500, {}), (200, {"reward": 0.5})],  # the second attempt
        2: [(200, {"reward": 0.0, "_ng_failure_class": "judge_no_verdict", "_ng_failure_terminal": True})],
    }
    without_response = {key: value for key, value in result(3, 0, 1.0).items() if key != "response"}
    path = write_results(tmp_path / "x.jsonl", [*(result(task, 0, 1.0) for task in range(3)), without_response])
    verdicts, _ = await reverify(path, verifier, client, tmp_path / "new.jsonl")
    assert [(v.after, v.failure.failure_class if v.failure else None) for v in verdicts] == [
        (None, "http_error"),
        (0.5, None),
        (None, "judge_no_verdict"),
        (None, "no_response"),
    ]
    assert not any(v.has_changed for v in verdicts if v.failure)
    run = read_run(tmp_path / "new.jsonl")
    assert [r.task_index for r in run.results.rollouts] == [1]
    assert [f.failure_class for f in run.results.failures] == ["http_error", "judge_no_verdict", "no_response"]
    assert "sk-key" not in (tmp_path / "new_failures.jsonl").read_text(encoding="utf-8")


async def test_so_many_at_a_time_and_in_the_end_in_order(
    tmp_path: Path, fake: FakeVerifier, verifier: Verifier, client: VerifierClient
) -> None:
    path = write_results(tmp_path / "x.jsonl", [result(task, 0, 0.0) for task in reversed(range(40))])
    await reverify(path, verifier, client, tmp_path / "new.jsonl", concurrency=3)
    assert 1 <= fake.most_at_once <= 3
    assert len(fake.asked) == 40
    lines = (tmp_path / "new.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["_ng_task_index"] for line in lines] == list(range(40))


async def test_more_than_this_process_can_open_wait_for_a_connection(
    tmp_path: Path, fake: FakeVerifier, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "connection_budget", lambda: 3)
    path = write_results(tmp_path / "x.jsonl", [result(task, 0, 1.0) for task in range(40)])
    async with open_verifier_client() as client:
        verdicts, _ = await reverify(path, verifier, client, concurrency=40)
    assert [verdict.failure for verdict in verdicts] == [None] * 40
    assert 1 <= fake.most_at_once <= 3


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("unsupported", "'demo_server' cannot verify again: its rewards depend on the state of a session"),
        ({"mode": "unsupported"}, "cannot verify again"),
        (None, "does not say whether it can verify again: GET /reverify_mode answered HTTP 404"),
    ],
)
async def test_a_verifier_that_cannot_is_not_asked(
    tmp_path: Path, fake: FakeVerifier, verifier: Verifier, client: VerifierClient, mode: Any, said: str
) -> None:
    fake.mode = mode
    path = write_results(tmp_path / "x.jsonl", [result(0, 0, 0.0)])
    with pytest.raises(ConfigError) as error:
        await reverify(path, verifier, client, tmp_path / "new.jsonl")
    assert said in str(error.value)
    assert fake.asked == []
    assert not (tmp_path / "new.jsonl").exists()


async def test_a_verifier_that_is_gone(tmp_path: Path, client: VerifierClient) -> None:
    gone = Verifier("gone", "http://127.0.0.1:1")
    path = write_results(tmp_path / "x.jsonl", [result(0, 0, 0.0)])
    with pytest.raises(ConfigError, match="'gone' does not answer /reverify_mode"):
        await reverify(path, gone, client)
    outcome = await client.verify(gone, b"{}")
    assert outcome.failure is not None
    assert (outcome.failure.failure_class, outcome.failure.retryable) == ("connection_lost", True)


async def test_metrics_of_the_verifiers_own(tmp_path: Path, verifier: Verifier, client: VerifierClient) -> None:
    other = {"agent_ref": {**AGENT_REF, "name": "other"}}
    path = write_results(tmp_path / "x.jsonl", [result(0, 0, 1.0), result(1, 0, 0.0), result(2, 0, 1.0, **other)])
    paths = ResultPaths(path)
    assert agents_in(paths, []) == {"demo_agent", "other"}
    for agent, mean in (("demo_agent", 0.5), ("other", 1.0), ("", 2 / 3)):
        found = await client.aggregate(verifier, replies_of(paths, agent, []))
        assert isinstance(found, dict)
        assert found["key_metrics"]["mean/reward"] == pytest.approx(mean)


def test_new_results_stand_beside_what_the_old_ones_came_from(tmp_path: Path) -> None:
    old, new = ResultPaths(tmp_path / "old.jsonl"), ResultPaths(tmp_path / "new.jsonl")
    write_results(old.rollouts, [result(0, 0, 1.0)], [failure(1)], [row(0), row(1)])
    old.run.write_text('{"schema": "nemo-gym.run.v1", "run_id": "r"}', encoding="utf-8")
    write_results(new.rollouts, [result(9, 0, 1.0)])
    begin_reverified_files(old, new)
    assert not new.rollouts.exists()
    write_results(new.rollouts, [], [failure(0, failure_class="judge")])
    finish_reverified_files(old, new, command=["gym"], images={"registry": "i"}, counts={"failed": 1})
    assert new.materialized_inputs.read_bytes() == old.materialized_inputs.read_bytes()
    assert [f.failure_class for f in read_run(new.rollouts).results.failures] == ["judge", "http_error"]
    record = json.loads(new.run.read_bytes())
    assert record["run_id"] == "r"
    (entry,) = record["reverified"]
    assert (entry["from"], entry["images"], entry["failed"]) == (str(old.rollouts), {"registry": "i"}, 1)
