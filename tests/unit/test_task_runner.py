from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark
from nemo_gym.environment.task_runner import TaskResult, TaskRunner, _first_row_of_each_task, _with_rollout_id
from nemo_gym.errors import ConfigError, RolloutFailedError
from tests.unit.fake_gym import FakeGym, answer, make_row, never_answers, reset_connection

NO_ONE = BaseServerConfig(host="127.0.0.1", port=1)


def runner_for(gym: FakeGym, *rows: dict[str, Any], token: str | None = None) -> TaskRunner:
    return TaskRunner(
        rows or [make_row("a", 0), make_row("b", 1)],
        registry_server=BaseServerConfig(host=gym.host, port=gym.port, token=token),
    )


class TestRows:
    def test_they_are_indexed_in_order_and_nobody_is_called(self) -> None:
        rows = [make_row("b", 0), make_row("a", 1), make_row("b", 0, _ng_rollout_index=1)]
        runner = TaskRunner(rows, registry_server=NO_ONE)
        assert runner.task_ids() == ["b", "a"]
        assert _first_row_of_each_task(rows) == {"b": rows[0], "a": rows[1]}

    def test_ids_come_from_the_position_where_a_row_has_none(self) -> None:
        rows = [make_row(None, 7), make_row(None, 9)]
        assert TaskRunner(rows, registry_server=NO_ONE).task_ids() == ["7", "9"]
        bare = [{k: v for k, v in row.items() if k != "_ng_task_index"} for row in rows]
        assert TaskRunner(bare, registry_server=NO_ONE).task_ids() == ["0", "1"]

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            ("text", r"Row 2 must be a mapping.*str"),
            (
                {"agent_ref": {"type": "responses_api_agents", "name": "x"}},
                r"Row 2 needs responses_create_params",
            ),
            ({"responses_create_params": {}}, r"Row 2 needs agent_ref"),
            (make_row("c", agent_ref={"type": "resources_servers", "name": "x"}), r"Row 2 needs agent_ref"),
            (make_row("c", agent_ref={"type": "responses_api_agents", "name": ""}), r"Row 2 needs agent_ref"),
            (make_row("c", _ng_task_index="1"), r"Row 2 has _ng_task_index='1'"),
            (make_row("c", task_id=1.5), r"Row 2: task_id must be"),
            (make_row("a", wanted_reward=0.5), r"Row 2 has the same task id as row 1, 'a'.* wanted_reward"),
        ],
    )
    def test_a_bad_one_is_refused_with_its_number(self, row: Any, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            TaskRunner([make_row("a"), row], registry_server=NO_ONE)

    @pytest.mark.parametrize("rows", [PlannedBenchmark(None, []), {"rows": []}, "rows.jsonl", None])  # type: ignore[arg-type]
    def test_something_else_than_rows_is_refused(self, rows: Any) -> None:
        kind = type(rows).__name__
        with pytest.raises(ConfigError, match=rf"needs the rows .*: TaskRunner\(planned.rows, ...\); found a {kind}\."):
            TaskRunner(rows, registry_server=NO_ONE)

    def test_repeats_are_numbered_and_the_row_stays_as_it_is(self) -> None:
        row = make_row("a")
        before = json.dumps(row)
        assert _with_rollout_id(row, "x", 0, 1)["_ng_rollout_id"] == "x"
        second = _with_rollout_id(row, "x", 1, 2)
        assert (second["_ng_rollout_id"], second["_ng_rollout_index"]) == ("x-r1", 1)
        assert json.dumps(row) == before


@pytest.mark.parametrize(
    "server",
    [None, {"host": "127.0.0.1", "port": 1}, BaseServerConfig(host="", port=1), BaseServerConfig(host="h", port=0)],
)
def test_a_registry_server_that_is_none(server: Any) -> None:
    with pytest.raises(ConfigError, match="registry_server must say"):
        TaskRunner([make_row("a")], registry_server=server)


class TestRunTask:
    async def test_one_rollout(self) -> None:
        async with FakeGym() as gym, runner_for(gym) as runner:
            result = await runner.run_task("b")
        assert isinstance(result, TaskResult)
        assert (result.task_id, result.rewards) == ("b", [1.0])
        assert result.results[0]["response"] == {"output": []}
        (row,) = gym.rows
        assert row["task_id"] == "b"
        assert gym.paths == [f"/ng-rollout/{row['_ng_rollout_id']}/run"]

    async def test_repeats_run_together_and_keep_their_order(self) -> None:
        async def later_first(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            index = row["_ng_rollout_index"]
            await gym.until(lambda gym: gym.most_in_flight >= 5)
            await asyncio.sleep(0.05 * (5 - index))
            return web.json_response({"reward": index / 10})

        async with FakeGym(later_first) as gym, runner_for(gym) as runner:
            result = await runner.run_task("a", num_repeats=5, rollout_id="try.1")
        assert result.rewards == [0.0, 0.1, 0.2, 0.3, 0.4]
        assert len(result.results) == 5
        assert sorted(row["_ng_rollout_id"] for row in gym.rows) == [f"try.1-r{n}" for n in range(5)]

    async def test_fresh_ids_differ_and_a_given_one_is_used_as_it_is(self) -> None:
        async with FakeGym() as gym, runner_for(gym) as runner:
            await asyncio.gather(runner.run_task("a"), runner.run_task("a"), runner.run_task("a", rollout_id="X"))
        ids = {row["_ng_rollout_id"] for row in gym.rows}
        assert len(ids) == 3
        assert "X" in ids

    async def test_several_hundred_calls_at_once(self) -> None:
        async def together(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            await gym.until(lambda gym: gym.most_in_flight >= 300)
            return web.json_response({"reward": 1})

        async with FakeGym(together) as gym, runner_for(gym) as runner:
            results = await asyncio.gather(*(runner.run_task("a") for _ in range(300)))
        assert [result.rewards for result in results] == [[1.0]] * 300
        assert gym.most_in_flight == 300

    async def test_nothing_is_open_when_no_call_is(self) -> None:
        async with FakeGym() as gym:
            runner = runner_for(gym)
            before = asyncio.all_tasks()
            await runner.run_task("a")
            assert asyncio.all_tasks() == before
            assert runner._helper._connections._shared == {}

    def test_a_loop_that_is_closed_at_once_leaves_nothing_behind(self) -> None:
        loop = asyncio.new_event_loop()
        gym = FakeGym()
        loop.run_until_complete(gym.__aenter__())
        try:
            result = loop.run_until_complete(runner_for(gym).run_task("a"))
            assert result.rewards == [1.0]
        finally:
            loop.run_until_complete(gym.__aexit__())
            loop.close()

    def test_it_survives_a_second_event_loop(self) -> None:
        runners: list[TaskRunner] = []

        async def once(port: int) -> int:
            async with FakeGym(port=port) as gym:
                if not runners:
                    runners.append(runner_for(gym))
                result = await runners[0].run_task("a", num_repeats=2)
                assert result.rewards == [1.0, 1.0]
                return gym.port

        port = asyncio.run(once(0))
        assert asyncio.run(once(port)) == port

    async def test_other_servers_behind_the_same_address_are_found_again(self) -> None:
        async with FakeGym() as gym:
            runner = runner_for(gym)
            await runner.run_task("a")
        async with FakeGym(port=gym.port) as registry, FakeGym() as agent:
            registry.config = agent.host_view()
            await runner.run_task("a")
            assert (len(agent.rows), len(registry.rows)) == (1, 0)

    async def test_an_agent_without_correlation_routes_is_called_plainly(self) -> None:
        async with FakeGym(correlates=False) as gym, runner_for(gym) as runner:
            await runner.run_task("a", rollout_id="one")
            await runner.run_task("a", rollout_id="two")
        assert gym.paths == ["/run", "/run"]
        assert [row["_ng_rollout_id"] for row in gym.rows] == ["one", "two"]

    async def test_a_404_of_a_correlating_agent_is_a_failure(self) -> None:
        async def second_is_lost(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            return web.json_response({"reward": 1}, status=200 if len(gym.rows) == 1 else 404)

        async with FakeGym(second_is_lost) as gym, runner_for(gym) as runner:
            await runner.run_task("a")
            with pytest.raises(RolloutFailedError, match="HTTP 404"):
                await runner.run_task("a")
        assert len(gym.rows) == 2

    async def test_the_token_is_sent_to_registry_and_agent(self) -> None:
        async with FakeGym(token="s3") as gym:
            async with runner_for(gym, token="s3") as runner:
                assert (await runner.run_task("a")).rewards == [1.0]
                assert "s3" not in repr(runner._registry)
            async with runner_for(gym) as runner:
                with pytest.raises(ConfigError, match=r"HTTP 401: it asks for a token\. Set NEMO_GYM_TOKEN here"):
                    await runner.run_task("a")
            async with runner_for(gym, token="other") as runner:
                with pytest.raises(ConfigError, match=r"HTTP 401: it refuses the token that was sent"):
                    await runner.wait_until_ready(60)

    async def test_the_token_may_stand_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NEMO_GYM_TOKEN", "s3")
        async with FakeGym(token="s3") as gym:
            async with runner_for(gym) as runner:
                assert (await runner.run_task("a")).rewards == [1.0]
            async with runner_for(gym, token="other") as runner:  # the one given goes first
                with pytest.raises(ConfigError, match="HTTP 401"):
                    await runner.run_task("a")
        monkeypatch.setenv("NEMO_GYM_TOKEN", "a b")
        with pytest.raises(ConfigError, match="NEMO_GYM_TOKEN holds a space"):
            runner_for(gym)

    async def test_cancelling_the_call_cancels_its_rollouts_and_frees_the_id(self) -> None:
        async with FakeGym(never_answers) as gym, runner_for(gym) as runner:
            call = asyncio.create_task(runner.run_task("a", num_repeats=3, rollout_id="x"))
            await gym.until(lambda gym: gym.in_flight >= 3)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(2):
                await gym.until(lambda gym: gym.in_flight == 0)
            gym.script = answer({"reward": 0})
            assert (await runner.run_task("a", rollout_id="x")).rewards == [0.0]


class TestRefusedRequests:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"task_id": "aa"}, r"'aa'.*Did you mean 'a'"),
            ({"task_id": 0}, r"0, which is no text"),
            ({"task_id": "a", "num_repeats": 0}, r"num_repeats.*found 0"),
            ({"task_id": "a", "num_repeats": True}, r"num_repeats.*found True"),
            ({"task_id": "a", "num_repeats": 1.0}, r"num_repeats.*found 1\.0"),
            ({"task_id": "a", "rollout_id": "-x"}, r"rollout id.*'-x'"),
            ({"task_id": "a", "rollout_id": "a/b"}, r"rollout id.*'a/b'"),
            ({"task_id": "a", "rollout_id": "x\n"}, r"rollout id.*'x\\n'"),
            ({"task_id": "a", "rollout_id": ""}, r"rollout id.*''"),
        ],
    )
    async def test_they_name_what_is_wrong(self, arguments: dict[str, Any], said: str) -> None:
        runner = TaskRunner([make_row("a"), make_row("b", 1)], registry_server=NO_ONE)
        with pytest.raises(ConfigError, match=said):
            await runner.run_task(**arguments)

    @pytest.mark.parametrize(("second", "repeats"), [("x", 1), ("x", 3), ("x-r1", 1)])
    async def test_an_id_in_use(self, second: str, repeats: int) -> None:
        async with FakeGym(never_answers) as gym, runner_for(gym) as runner:
            first = asyncio.create_task(runner.run_task("a", num_repeats=2, rollout_id="x"))
            await gym.until(lambda gym: gym.in_flight >= 2)
            with pytest.raises(ConfigError, match="in use"):
                await runner.run_task("b", num_repeats=repeats, rollout_id=second)
            assert len(gym.rows) == 2
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first

    async def test_an_agent_that_the_registry_does_not_serve(self) -> None:
        stray = make_row("a", agent_ref={"type": "responses_api_agents", "name": "agnet"})
        async with FakeGym() as gym, runner_for(gym, stray) as runner:
            with pytest.raises(ConfigError, match=r"'agnet'.*Did you mean agent\?"):
                await runner.run_task("a")

    async def test_a_row_that_json_cannot_carry(self) -> None:
        async with FakeGym() as gym, runner_for(gym, make_row("a", thing={1, 2})) as runner:
            with pytest.raises(ConfigError, match="JSON"):
                await runner.run_task("a")

    async def test_no_registry(self, unused_tcp_port: int) -> None:
        runner = TaskRunner([make_row("a")], BaseServerConfig(host="127.0.0.1", port=unused_tcp_port))
        with pytest.raises(ConfigError, match=rf"{unused_tcp_port} is not ready: no connection.*wait_until_ready"):
            await runner.run_task("a")

    async def test_a_registry_that_still_waits(self) -> None:
        async with FakeGym(awaited=["policy_model"]) as gym, runner_for(gym) as runner:
            with pytest.raises(ConfigError, match="still waits for policy_model"):
                await runner.run_task("a")

    async def test_something_else_at_the_registry_address(self) -> None:
        async with FakeGym(has_ready=False) as gym, runner_for(gym) as runner:
            gym.config = {"no": "servers"}
            with pytest.raises(ConfigError, match="does not serve"):
                await runner.run_task("a")


class TestWaitUntilReady:
    async def test_it_waits_for_a_registry_that_is_not_there_yet(self, unused_tcp_port: int) -> None:
        runner = TaskRunner([make_row("a")], BaseServerConfig(host="127.0.0.1", port=unused_tcp_port))
        waiting = asyncio.create_task(runner.wait_until_ready(10))
        await asyncio.sleep(0.2)
        async with FakeGym(port=unused_tcp_port, awaited=["policy_model"]) as gym:
            await asyncio.sleep(0.4)
            assert not waiting.done()
            gym.awaited = []
            started = time.monotonic()
            await waiting
            assert time.monotonic() - started < 20
            assert (await runner.run_task("a")).rewards == [1.0]
            await runner.aclose()

    async def test_a_registry_without_a_ready_route_is_ready_with_its_config(self) -> None:
        async with FakeGym(has_ready=False, awaited=["x"]) as gym, runner_for(gym) as runner:
            with pytest.raises(ConfigError, match=r"within 0\.3 s"):
                await runner.wait_until_ready(0.3)
            gym.awaited = []
            await runner.wait_until_ready(0.3)

    async def test_it_says_what_it_saw_last(self, unused_tcp_port: int) -> None:
        runner = TaskRunner([make_row("a")], BaseServerConfig(host="127.0.0.1", port=unused_tcp_port))
        with pytest.raises(ConfigError, match=r"within 0\.2 s: no connection"):
            await runner.wait_until_ready(0.2)
        async with FakeGym(awaited=["policy_model", "agent"]) as gym, runner_for(gym) as runner:
            with pytest.raises(ConfigError, match="still waits for policy_model, agent"):
                await runner.wait_until_ready(0.2)

    @pytest.mark.parametrize("timeout_s", [0, -1, "3", True, float("nan")])
    async def test_a_timeout_that_is_none(self, timeout_s: Any) -> None:
        with pytest.raises(ConfigError, match="timeout_s"):
            await TaskRunner([], NO_ONE).wait_until_ready(timeout_s)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls and their answers come faster than in earnest, where a test waits for nothing to happen."""
    monkeypatch.setattr("nemo_gym.rollouts.death_watch.POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr("nemo_gym.rollouts.collection.CAUSE_OF_BROKEN_CONNECTION_S", 0.2)


class TestFailures:
    async def failure(self, gym: FakeGym, num_repeats: int = 1, within_s: float = 4) -> RolloutFailedError:
        async with asyncio.timeout(within_s), gym, runner_for(gym) as runner:
            with pytest.raises(RolloutFailedError) as caught:
                await runner.run_task("a", num_repeats=num_repeats, rollout_id="x")
        return caught.value

    async def test_an_error_answer(self) -> None:
        gym = FakeGym(answer("y" * 5000 + "the end", 500))
        error = await self.failure(gym)
        assert (error.task_id, error.repeat, error.server, error.status) == ("a", 0, "agent", 500)
        assert error.body_tail.endswith("the end")
        assert len(error.body_tail) <= 2001
        assert "HTTP 500" in str(error)
        assert "the end" in str(error)
        assert error.results == [None]
        assert len(gym.rows) == 1

    async def test_the_server_that_failed_behind_the_agent_is_named(self) -> None:
        body = {"error": {"type": "downstream_error", "message": "policy_model said no", "server": "policy_model"}}
        error = await self.failure(FakeGym(answer(body, 502)))
        assert (error.server, error.status) == ("policy_model", 502)

    @pytest.mark.parametrize(
        ("reply", "said"),
        [
            ({"reward": None}, "finite number"),
            ({"reward": True}, "finite number"),
            ({"reward": "1"}, "finite number"),
            ('{"reward": NaN}', "finite number"),
            ('{"reward": Infinity}', "finite number"),
            ('{"reward": 1' + "0" * 400 + "}", "finite number"),
            ({}, "no reward"),
            ([1], "JSON array"),
            ("<html>", "not JSON"),
            ("", "not JSON"),
            ({"reward": 1, "_ng_failure_class": "judge_timeout"}, "_ng_failure_class='judge_timeout'"),
            ({"reward": 1, "_ng_no_persist": True}, "_ng_no_persist"),
            ({"reward": 1, "_ng_failure_terminal": True}, "_ng_failure_terminal"),
            ({"reward": 1, "_ng_failure_judge_error": "x"}, "_ng_failure_judge_error"),
        ],
    )
    async def test_a_reply_that_is_no_result(self, reply: Any, said: str) -> None:
        error = await self.failure(FakeGym(answer(reply)))
        assert said in str(error)
        assert error.status == 200

    async def test_markers_that_say_no_are_none(self) -> None:
        reply = {"reward": 1, "_ng_failure_class": None, "_ng_no_persist": False}
        async with FakeGym(answer(reply)) as gym, runner_for(gym) as runner:
            assert (await runner.run_task("a")).rewards == [1.0]

    async def test_the_other_repeats_go_on_and_their_results_are_kept(self) -> None:
        async def second_fails(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_rollout_index"] == 1:
                return web.json_response({"detail": "bad"}, status=422)
            await asyncio.sleep(0.2)
            return web.json_response({"reward": row["_ng_rollout_index"]})

        error = await self.failure(FakeGym(second_fails), num_repeats=3)
        assert (error.repeat, error.status) == (1, 422)
        assert error.results == [{"reward": 0}, None, {"reward": 2}]
        assert "1 of 3 repeats failed" in str(error)

    async def test_a_broken_connection(self, hurried: None) -> None:
        error = await self.failure(FakeGym(reset_connection))
        assert (error.server, error.status, error.failure_class) == ("agent", None, "connection_lost")

    async def test_a_broken_connection_of_a_dead_server(self) -> None:
        async def dies(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            asyncio.get_running_loop().call_later(
                0.3,
                gym.dead.append,
                {"name": "agent", "exit_code": 137, "oom_killed": True, "detail": "the log"},
            )
            return await reset_connection(gym, row, request)

        error = await self.failure(FakeGym(dies))
        assert (error.server, error.failure_class) == ("agent", "server_dead")
        assert "exit code 137" in str(error)
        assert "memory" in str(error)
        assert "the log" in str(error)

    async def test_a_dead_server_behind_an_agent_that_waits_for_ever(self) -> None:
        async def verifier_dies(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            if row["_ng_rollout_index"] == 0:
                return web.json_response({"reward": 0.25})
            gym.dead = [{"name": "verifier", "exit_code": 1}]
            return await never_answers(gym, row, request)

        started = time.monotonic()
        error = await self.failure(FakeGym(verifier_dies), num_repeats=3)
        assert time.monotonic() - started < 20
        assert (error.server, error.repeat) == ("verifier", 1)
        assert error.results == [{"reward": 0.25}, None, None]

    async def test_an_error_answer_that_comes_from_a_death(self) -> None:
        async def late_news(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            asyncio.get_running_loop().call_later(0.15, gym.dead.append, {"name": "policy_model", "exit_code": 3})
            return web.json_response({"error": "model gone"}, status=500)

        error = await self.failure(FakeGym(late_news))
        assert (error.server, error.failure_class) == ("policy_model", "server_dead")

    async def test_the_death_of_a_server_that_the_agent_does_not_need_is_none_of_its_business(
        self, hurried: None
    ) -> None:
        async def slow(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.3)
            return web.json_response({"reward": 1})

        async with FakeGym(slow, dead=[{"name": "someone_else"}]) as gym, runner_for(gym) as runner:
            assert (await runner.run_task("a")).rewards == [1.0]
        assert gym.polls >= 2

    async def test_a_registry_without_instances_is_not_polled_again(self, hurried: None) -> None:
        async def slow(gym: FakeGym, row: dict[str, Any], request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.3)
            return web.json_response({"reward": 1})

        async with FakeGym(slow, has_instances=False) as gym, runner_for(gym) as runner:
            assert (await runner.run_task("a")).rewards == [1.0]
            assert gym.polls == 1

    async def test_a_registry_that_vanishes_ends_the_call(self) -> None:
        async with FakeGym(never_answers) as agent, runner_for(agent):
            async with FakeGym() as registry:
                registry.config = agent.host_view()
                runner = runner_for(registry)
                call = asyncio.create_task(runner.run_task("a"))
                await agent.until(lambda gym: gym.in_flight == 1)
            started = time.monotonic()
            with pytest.raises(RolloutFailedError, match="has not answered") as caught:
                await call
            assert 2 < time.monotonic() - started < 30
            assert caught.value.failure_class == "registry_unreachable"
            await runner.aclose()

    async def test_nobody_polls_when_no_call_is_open(self, hurried: None) -> None:
        async with FakeGym() as gym, runner_for(gym) as runner:
            await runner.run_task("a")
            await asyncio.sleep(0.3)
            assert gym.polls == 0
