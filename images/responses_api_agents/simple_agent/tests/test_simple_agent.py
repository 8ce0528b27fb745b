from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import BaseModel
from yarl import URL

from images.responses_api_agents.simple_agent.app import SimpleAgent
from images.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.servers.logs import current_rollout_id
from nemo_gym.servers.messages import Bootstrap, RunRequest, VerifyRequest
from nemo_gym.servers.resources import ResourcesServer, Session, tool
from nemo_gym.servers.testing import Running, ServerT, serving, serving_app

Output = list[dict[str, Any]]
Answer = Output | Callable[[], web.StreamResponse | Awaitable[web.StreamResponse]]


class Amount(BaseModel):
    by: int


class Picky(VerifyRequest):
    expected: int


class Counting(ResourcesServer):
    """Counts in the session; the reward is what it counted."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        super().__init__(bootstrap)
        self.hangs, self.stopped = asyncio.Event(), asyncio.Event()

    async def seed_session(self, row: RunRequest, session: Session) -> None:
        session.state.update(count=0, order=[])

    @tool
    async def add(self, amount: Amount, session: Session) -> dict[str, int]:
        await asyncio.sleep(0.02 / amount.by)
        session.state["count"] += amount.by
        session.state["order"].append(amount.by)
        return {"count": session.state["count"]}

    @tool
    async def hang(self) -> None:
        self.hangs.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.stopped.set()

    @tool
    async def read(self) -> dict[str, int]:
        return {"value": 7}

    @tool
    async def echo(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    @tool
    async def dump(self) -> str:
        return "x" * 10_000_000

    @tool
    async def fail(self) -> None:
        raise LookupError("nothing here")

    async def verify(self, row: VerifyRequest, session: Session) -> dict[str, Any]:
        rollout = current_rollout_id.get()
        return {"reward": session.state["count"], "order": session.state["order"], "rollout": rollout}


class Scripted:
    """A Responses API endpoint that gives one output after the other, and keeps what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/responses", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if callable(answer):
            given = answer()
            return await given if isinstance(given, Awaitable) else given
        usage = {"input_tokens": 10, "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 1}}
        return web.json_response({"id": f"r{len(self.asked)}", "output": answer, "usage": usage})


def says(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def calls(name: str, arguments: Any, call_id: str = "c") -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}


def outputs_in(request: dict[str, Any]) -> list[Any]:
    return [item["output"] for item in request["input"] if item.get("type") == "function_call_output"]


def resources_of(
    kind: type[ServerT], settings: Mapping[str, Any] | None = None
) -> AbstractAsyncContextManager[Running[ServerT]]:
    return serving(kind, settings, name="counting")


@asynccontextmanager
async def chain_to(resources: Running[Any], endpoint: Scripted, **settings: Any) -> AsyncIterator[Running[SimpleAgent]]:
    """An agent before a resources server and a model server before an endpoint, all with real sockets."""
    quick = {"retry": {"attempts": 2, "first_wait_s": 0.01}}
    async with (
        serving_app(endpoint.app()) as url,
        serving(OpenAIModel, {"openai_base_url": f"{url}/v1", "openai_model": "m", **quick}, name="model") as model,
    ):
        refs = {
            "model_server": {"type": "responses_api_models", "name": "model"},
            "resources_server": {"type": "resources_servers", "name": "counting"},
        }
        config = {**model.entry(), **resources.entry()}
        async with serving(SimpleAgent, {**refs, **settings}, name="agent", config=config) as agent:
            yield agent


@asynccontextmanager
async def chain(
    endpoint: Scripted,
    resources: type[ResourcesServer] = Counting,
    *,
    of_resources: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Running[SimpleAgent]]:
    async with resources_of(resources, of_resources) as counting, chain_to(counting, endpoint, **settings) as agent:
        yield agent


def row(value: Any = "count", **params: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": value, **params}, "_ng_task_index": 3, "extra": [1]}


class TestRun:
    async def test_the_reply_is_the_verifiers(self) -> None:
        endpoint = Scripted([says("done")])
        async with chain(endpoint) as agent:
            reply = await agent.post("/run", row(temperature=0.5))
        body = reply.json()
        assert reply.status == 200
        assert (body["reward"], body["extra"], body["_ng_task_index"]) == (0, [1], 3)
        assert body["response"]["output"][0]["content"][0]["text"] == "done"
        assert endpoint.asked == [{"input": "count", "temperature": 0.5, "model": "m"}]

    async def test_tools_are_called_step_by_step_in_one_session(self) -> None:
        thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"}
        endpoint = Scripted(
            [thought, calls("add", '{"by": 1}', "a"), calls("add", '{"by": 2}', "b")],
            [calls("add", '{"by": 4}', "c")],
            [says("done")],
        )
        async with chain(endpoint) as agent:
            body = (await agent.post("/run", row())).json()
        assert body["reward"] == 7
        assert body["order"] == [1, 2, 4]
        second, third = endpoint.asked[1]["input"], endpoint.asked[2]["input"]
        assert second[0] == {"role": "user", "content": "count"}
        assert second[1] == thought
        kinds = ["reasoning", "function_call", "function_call", "function_call_output", "function_call_output"]
        assert [item["type"] for item in second[1:]] == kinds
        assert [item["call_id"] for item in second[2:]] == ["a", "b", "a", "b"]
        assert outputs_in(endpoint.asked[2]) == ['{"count":1}', '{"count":3}', '{"count":7}']
        assert third[: len(second)] == second
        response = body["response"]
        kinds += ["function_call", "function_call_output", "message"]
        assert [item["type"] for item in response["output"]] == kinds
        assert (response["usage"]["input_tokens"], response["usage"]["total_tokens"]) == (30, 33)
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
        assert response["id"] == "r3"

    async def test_the_calls_of_a_step_may_run_at_the_same_time(self) -> None:
        endpoint = Scripted([calls("add", '{"by": 1}', "a"), calls("add", '{"by": 4}', "b")], [says("done")])
        async with chain(endpoint, concurrent_tool_calls=True) as agent:
            body = (await agent.post("/run", row())).json()
        assert body["order"] == [4, 1]
        assert outputs_in(endpoint.asked[1]) == ['{"count":5}', '{"count":4}']

    async def test_what_goes_wrong_with_a_tool_is_the_models_to_read(self) -> None:
        endpoint = Scripted(
            [
                calls("add", '{"by": ', "a"),
                calls("add", "[1]", "b"),
                calls("add", '{"by": "x"}', "c"),
                calls("fail", "{}", "d"),
                calls("nothing", "{}", "e"),
                calls("verify", "{}", "f"),
                calls("../verify", "{}", "g"),
                calls("add", "", "h"),
                calls("", "{}", "i"),
                calls("a b", "{}", "j"),
                calls("añadir", "{}", "k"),
            ],
            [says("sorry")],
        )
        async with chain(endpoint) as agent:
            body = (await agent.post("/run", row())).json()
        malformed, no_object, invalid, raised, missing, reserved, path, *odd = outputs_in(endpoint.asked[1])
        empty, unnamed, spaced, foreign = odd
        assert "no JSON" in malformed
        assert "no JSON object" in no_object
        assert '"loc":["body","by"]' in invalid
        assert "LookupError" in raised
        assert "no route POST" in missing
        assert "no tool" in reserved
        assert "no name of a tool" in path
        assert '"loc":["body","by"]' in empty
        assert "'' is no name of a tool" in unnamed
        assert "no name of a tool" in spaced
        assert "no route POST /añadir" in foreign
        assert body["reward"] == 0

    @pytest.mark.parametrize("arguments", ["", " \n", None, "{}", {}])
    async def test_a_tool_that_takes_nothing_is_called_with_whatever_says_so(self, arguments: Any) -> None:
        endpoint = Scripted([calls("read", arguments)], [says("done")])
        async with chain(endpoint) as agent:
            await agent.post("/run", row())
        assert outputs_in(endpoint.asked[1]) == ['{"value":7}']

    async def test_half_a_character_in_the_arguments_reaches_the_tool_replaced(self) -> None:
        endpoint = Scripted([calls("echo", r'{"text": "\ud83d!"}')], [says("done")])
        async with chain(endpoint) as agent:
            await agent.post("/run", row())
        assert outputs_in(endpoint.asked[1]) == ['{"text":"\ufffd!"}']

    async def test_whole_numbers_of_any_size_reach_the_verifier_as_they_are(self) -> None:
        wide = 123456789012345678901234567890
        message = {**says("done"), "seen": wide}
        endpoint = Scripted([calls("echo", json.dumps({"n": wide}))], [message])
        async with chain(endpoint) as agent:
            asked = json.dumps({**row(), "wide": -wide}).encode()
            body = json.loads((await agent.post("/run", asked)).body)
        assert outputs_in(endpoint.asked[1]) == [f'{{"n":{wide}}}']
        assert (body["wide"], body["response"]["output"][-1]["seen"]) == (-wide, wide)

    async def test_the_last_steps_calls_are_carried_out_and_not_answered(self) -> None:
        endpoint = Scripted([calls("add", '{"by": 1}')])
        async with chain(endpoint, max_steps=3) as agent:
            body = (await agent.post("/run", row())).json()
        assert len(endpoint.asked) == 3
        assert body["reward"] == 3
        assert body["response"]["output"][-1]["type"] == "function_call_output"

    async def test_calls_that_are_not_to_be_carried_out_are_left_to_the_verifier(self) -> None:
        answer = [says("I add twice."), calls("add", '{"by": 1}', "a"), calls("hang", "{}", "b")]
        endpoint = Scripted(answer)
        async with chain(endpoint, carry_out_tool_calls=False) as agent:
            body = (await agent.post("/run", row())).json()
        assert len(endpoint.asked) == 1
        assert body["reward"] == 0
        assert [item["type"] for item in body["response"]["output"]] == ["message", "function_call", "function_call"]
        assert [item.get("name") for item in body["response"]["output"]] == [None, "add", "hang"]

    async def test_the_calls_of_an_answer_that_was_cut_off_are_not_made(self) -> None:
        cut = {"output": [calls("add", '{"by": 1')], "status": "incomplete"}
        endpoint = Scripted(lambda: web.json_response(cut))
        async with chain(endpoint) as agent:
            body = (await agent.post("/run", row())).json()
        assert len(endpoint.asked) == 1
        assert body["response"]["status"] == "incomplete"

    async def test_input_items_go_out_as_they_came(self) -> None:
        items = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "input_text", "text": "q"}]}]
        endpoint = Scripted([calls("add", '{"by": 1}')], [says("x")])
        async with chain(endpoint) as agent:
            await agent.post("/run", row(items))
        assert endpoint.asked[0]["input"] == items
        assert endpoint.asked[1]["input"][:2] == items

    @pytest.mark.parametrize("prefix", ["", "/ng-rollout/r-1"])
    async def test_every_server_learns_the_rollout(self, prefix: str) -> None:
        async with chain(Scripted([says("x")])) as agent:
            body = (await agent.post(f"{prefix}/run", {**row(), "_ng_rollout_id": "r-1"})).json()
        assert body["rollout"] == "r-1"

    async def test_rollouts_at_the_same_time_keep_their_sessions_apart(self) -> None:
        endpoint = Scripted([calls("add", '{"by": 1}')])
        async with chain(endpoint, max_steps=2) as agent:
            replies = await asyncio.gather(*(agent.post("/run", row()) for _ in range(20)))
        assert [reply.json()["reward"] for reply in replies] == [2] * 20

    async def test_items_of_unknown_types_are_kept_and_left_alone(self) -> None:
        odd = {"type": "mcp_approval_request", "id": "m", "arguments": "{}", "name": "add"}
        endpoint = Scripted([odd, calls("add", '{"by": 1}')], [odd, says("x")])
        async with chain(endpoint) as agent:
            body = (await agent.post("/run", row())).json()
        assert endpoint.asked[1]["input"][1] == odd
        kinds = [item["type"] for item in body["response"]["output"]]
        assert kinds == [odd["type"], "function_call", "function_call_output", odd["type"], "message"]
        assert body["reward"] == 1

    async def test_a_step_without_usage_adds_nothing_to_it(self) -> None:
        silent = {"output": [calls("add", '{"by": 1}')]}
        endpoint = Scripted(lambda: web.json_response(silent), [says("x")])
        async with chain(endpoint) as agent:
            body = (await agent.post("/run", row())).json()
        assert body["response"]["usage"]["input_tokens"] == 10

    async def test_an_output_of_megabytes_reaches_the_model_and_the_verifier_whole(self) -> None:
        endpoint = Scripted([calls("dump", "{}")], [says("x")])
        async with chain(endpoint) as agent:
            body = (await agent.post("/run", row())).json()
        (output,) = outputs_in(endpoint.asked[1])
        assert len(output) == 10_000_002
        assert body["response"]["output"][1]["output"] == output


class TestResponses:
    async def test_the_loop_runs_without_seeding_and_verifying_and_gives_the_sessions_cookie(self) -> None:
        endpoint = Scripted([calls("add", '{"by": 1}')], [says("x")])

        class Unseeded(Counting):
            @tool
            async def add(self, amount: Amount, session: Session) -> dict[str, int]:
                session.state["count"] = session.state.get("count", 0) + amount.by
                return {"count": session.state["count"]}

        async with chain(endpoint, Unseeded) as agent:
            first = await agent.post("/v1/responses", {"input": "q"})
            endpoint.asked.clear()
            await agent.post("/v1/responses", {"input": "q"})
        assert first.json()["output"][-1]["content"][0]["text"] == "x"
        assert "ng_session_counting=" in first.headers["Set-Cookie"]
        assert outputs_in(endpoint.asked[1]) == ['{"count":2}']

    async def test_metrics_are_the_resources_servers(self) -> None:
        async with chain(Scripted([says("x")])) as agent:
            reply = await agent.post("/aggregate_metrics", {"verify_responses": [{"reward": 1}, {"reward": 0}]})
        assert reply.json()["key_metrics"] == {"mean/reward": 0.5}


class TestFailures:
    async def test_a_row_without_input_is_refused_by_name(self) -> None:
        async with chain(Scripted([says("x")])) as agent:
            reply = await agent.post("/run", {"responses_create_params": {}})
        assert reply.status == 422
        assert reply.json()["detail"][0]["loc"] == ["body", "responses_create_params"]

    async def test_a_row_that_the_verifier_refuses_is_a_422_that_names_server_and_field(self) -> None:
        class Strict(Counting):
            async def verify(self, row: Picky, session: Session) -> dict[str, Any]:
                return {"reward": 1}

        async with chain(Scripted([says("x")]), Strict) as agent:
            reply = await agent.post("/run", row())
        error = reply.json()["error"]
        assert (reply.status, error["server"], error["status"]) == (422, "counting", 422)
        assert "expected: Field required" in error["message"]

    async def test_a_failing_model_is_a_502_that_says_which_server_which_status_and_why(self) -> None:
        endpoint = Scripted(lambda: web.json_response({"error": {"message": "out of memory"}}, status=500))
        async with chain(endpoint) as agent:
            reply = await agent.post("/run", row())
        error = reply.json()["error"]
        assert (reply.status, error["server"], error["status"]) == (502, "model", 502)
        assert "out of memory" in error["message"]
        assert "out of memory" in error["body_tail"]
        assert "reward" not in reply.json()

    async def test_a_model_that_is_late_is_a_504(self) -> None:
        endpoint = Scripted(lambda: web.json_response({"error": {"message": "late"}}, status=504))
        async with chain(endpoint) as agent:
            reply = await agent.post("/run", row())
        assert (reply.status, reply.json()["error"]["status"]) == (504, 504)

    async def test_a_verifier_that_raises_is_a_502_and_no_reward(self) -> None:
        class Broken(Counting):
            async def verify(self, row: VerifyRequest, session: Session) -> dict[str, Any]:
                raise ZeroDivisionError("no denominator")

        async with chain(Scripted([says("x")]), Broken) as agent:
            reply = await agent.post("/run", row())
        assert (reply.status, reply.json()["error"]["server"]) == (502, "counting")
        assert "ZeroDivisionError" in reply.json()["error"]["body_tail"]

    async def test_a_dead_server_is_a_502_without_a_status(self) -> None:
        refs = {
            "model_server": {"type": "responses_api_models", "name": "model"},
            "resources_server": {"type": "resources_servers", "name": "gone"},
        }
        gone = {"host": "127.0.0.1", "port": 9}
        config = {"gone": {"resources_servers": {"x": gone}}, "model": {"responses_api_models": {"x": gone}}}
        async with serving(SimpleAgent, refs, config=config) as agent:
            reply = await agent.post("/run", row())
        error = reply.json()["error"]
        assert (reply.status, error["server"], error["status"]) == (502, "gone", None)


class TestLate:
    @pytest.mark.parametrize("concurrent", [False, True])
    async def test_a_tool_that_hangs_is_a_504_that_names_it_and_is_stopped(self, concurrent: bool) -> None:
        endpoint = Scripted([calls("hang", "{}"), calls("add", '{"by": 1}')])
        settings = {"resources_timeout_s": 0.2, "concurrent_tool_calls": concurrent}
        async with resources_of(Counting) as counting, chain_to(counting, endpoint, **settings) as agent:
            reply = await agent.post("/run", row())
            error = reply.json()["error"]
            assert (reply.status, error["server"], error["status"]) == (504, "counting", None)
            assert "did not answer /hang" in error["message"]
            assert "resources_timeout_s (0.2 s)" in error["message"]
            await asyncio.wait_for(counting.server.stopped.wait(), 5)

    async def test_a_caller_that_leaves_stops_the_tool_that_runs_for_it(self) -> None:
        endpoint = Scripted([calls("hang", "{}")])
        async with resources_of(Counting) as counting, chain_to(counting, endpoint) as agent:
            run = asyncio.create_task(agent.post("/run", row()))
            async with asyncio.timeout(5):
                await counting.server.hangs.wait()
                run.cancel()
                await counting.server.stopped.wait()

    async def test_a_caller_that_leaves_stops_the_request_to_the_endpoint(self) -> None:
        asked, stopped = asyncio.Event(), asyncio.Event()

        async def never() -> web.StreamResponse:
            asked.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()
            return web.Response()

        async with chain(Scripted(never)) as agent:
            run = asyncio.create_task(agent.post("/run", row()))
            async with asyncio.timeout(5):
                await asked.wait()
                run.cancel()
                await stopped.wait()

    async def test_a_session_that_expires_during_the_rollout_fails_it(self) -> None:
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slow() -> web.StreamResponse:
            asked.set()
            await answer.wait()
            return web.json_response({"output": [calls("add", '{"by": 1}')]})

        endpoint = Scripted(slow, [says("other")], [says("x")])
        async with chain(endpoint, of_resources={"session_idle_s": 0.05}) as agent:
            run = asyncio.create_task(agent.post("/run", row()))
            await asyncio.wait_for(asked.wait(), 5)
            await asyncio.sleep(0.1)
            other = await agent.post("/run", row())  # a new session: those left alone go
            answer.set()
            reply = await run
        assert other.json()["reward"] == 0
        error = reply.json()["error"]
        assert (reply.status, error["server"], error["status"]) == (502, "counting", 410)
        assert "session_idle_s (0.05 s)" in error["message"]
        assert "session_expired" in outputs_in(endpoint.asked[2])[0]


class TestForeignServers:
    """Servers of this protocol that are written elsewhere: no rollout prefix, cookies of their own making."""

    @staticmethod
    def app(seen: list[tuple[str, str]]) -> web.Application:
        async def step(request: web.Request) -> web.StreamResponse:
            seen.append((request.path, request.headers.get("Cookie", "")))
            response = web.json_response({**await request.json(), "reward": 1.0, "output": [says("x")]})
            response.headers.add("Set-Cookie", f"session=eyJ=.{len(seen)}~; path=/; httponly")
            return response

        app = web.Application()
        for path in ("/seed_session", "/verify", "/v1/responses"):
            app.router.add_post(path, step)
        return app

    async def test_they_are_called_without_the_prefix_and_with_their_cookies_as_written(self) -> None:
        seen: list[tuple[str, str]] = []
        async with serving_app(self.app(seen)) as url, self.agent_of(url, url) as agent:
            reply = await agent.post("/ng-rollout/r1/run", row())
        assert (reply.status, reply.json()["reward"]) == (200, 1.0)
        assert seen == [("/seed_session", ""), ("/v1/responses", ""), ("/verify", "session=eyJ=.1~")]

    async def test_cookies_of_the_model_server_go_with_every_step(self) -> None:
        seen: list[tuple[str, str]] = []
        app = self.app(seen)
        steps = [[calls("tool", "{}")], [calls("tool", "{}")], [says("x")]]

        async def model(request: web.Request) -> web.StreamResponse:
            seen.append((request.path, request.headers.get("Cookie", "")))
            response = web.json_response({"output": steps.pop(0)})
            response.headers.add("Set-Cookie", f"route={len(steps)}; Path=/")
            return response

        async def tool(request: web.Request) -> web.StreamResponse:
            seen.append((request.path, request.headers.get("Cookie", "")))
            return web.Response(text="plain text", headers={"Set-Cookie": "session=; Max-Age=0"})

        app.router.add_post("/tool", tool)
        async with (
            serving_app(app) as foreign,
            serving_app(self.model_app(model)) as url,
            self.agent_of(foreign, url) as agent,
        ):
            body = (await agent.post("/run", row())).json()
        assert [step for step in seen if step[0] == "/v1/responses"] == [
            ("/v1/responses", ""),
            ("/v1/responses", "route=2"),
            ("/v1/responses", "route=1"),
        ]
        # a cookie that the tool has ended is not sent again
        assert [cookie for path, cookie in seen if path in ("/tool", "/verify")] == ["session=eyJ=.1~", "", ""]
        assert body["response"]["output"][1]["output"] == "plain text"

    async def test_an_answer_whose_items_are_no_objects_is_the_models_failure(self) -> None:
        async def model(request: web.Request) -> web.StreamResponse:
            return web.json_response({"output": ["hello"]})

        async with (
            serving_app(self.app([])) as foreign,
            serving_app(self.model_app(model)) as url,
            self.agent_of(foreign, url) as agent,
        ):
            reply = await agent.post("/run", row())
        assert (reply.status, reply.json()["error"]["server"]) == (502, "model")
        assert "no output" in reply.json()["error"]["message"]

    @staticmethod
    def model_app(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/responses", answer)
        return app

    @staticmethod
    def agent_of(resources: str, model: str) -> AbstractAsyncContextManager[Running[SimpleAgent]]:
        def entry(url: str) -> dict[str, Any]:
            address = URL(url)
            return {"x": {"host": address.host, "port": address.port}}

        refs = {
            "model_server": {"type": "responses_api_models", "name": "model"},
            "resources_server": {"type": "resources_servers", "name": "foreign"},
        }
        config = {
            "foreign": {"resources_servers": entry(resources)},
            "model": {"responses_api_models": entry(model)},
        }
        return serving(SimpleAgent, refs, config=config)
