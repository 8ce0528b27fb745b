from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web
from pydantic import BaseModel

from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import Route, Server, ServerSettings, json_response
from nemo_gym.servers.logs import JsonLineHandler, Redactor, current_rollout_id, secrets_in
from nemo_gym.servers.messages import Bootstrap, ServerRef, VerifyRequest
from nemo_gym.servers.resources import ResourcesServer, Session, tool
from nemo_gym.servers.testing import bootstrap_for, serving

ROW = {"responses_create_params": {"input": "q"}}


def verified(text: str = "", **fields: Any) -> dict[str, Any]:
    return {**ROW, "response": {"output": [{"type": "message", "role": "assistant", "content": text}]}, **fields}


class EchoSettings(ServerSettings):
    api_key: str = ""
    limit: int = 1


class Echo(Server):
    server_type = "resources_servers"
    settings: EchoSettings

    def routes(self) -> list[Route]:
        self.started, self.cancelled = asyncio.Event(), asyncio.Event()
        return [Route("POST", "/echo", self.echo), Route("GET", "/fail", self.fail), Route("GET", "/slow", self.slow)]

    async def echo(self, request: web.Request) -> web.StreamResponse:
        return json_response({"rollout": current_rollout_id.get(), "size": len(await request.read())})

    async def fail(self, request: web.Request) -> web.StreamResponse:
        raise LookupError(f"nothing under {self.settings.api_key}")

    async def slow(self, request: web.Request) -> web.StreamResponse:
        self.started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return json_response({})


class TestServer:
    async def test_it_says_who_it_is_and_that_it_is_ready(self) -> None:
        async with serving(Echo, name="mine") as echo:
            assert (await echo.get("/")).json() == {"status": "ok", "server": "mine", "session_id": "session"}
            ready = await echo.get("/ready")
        assert (ready.status, ready.json()) == (200, {"status": "ready", "server": "mine"})

    async def test_every_route_is_also_there_under_the_rollouts_prefix(self) -> None:
        async with serving(Echo) as echo:
            assert (await echo.post("/echo", {})).json()["rollout"] is None
            assert (await echo.post("/ng-rollout/r1.a-b_c/echo", {})).json()["rollout"] == "r1.a-b_c"
            assert (await echo.post("/echo", {})).json()["rollout"] is None
            bad = await echo.post("/ng-rollout/.hidden/echo", {})
        assert bad.status == 422
        assert "rollout_id" in bad.json()["error"]["message"]

    async def test_what_a_rollout_asks_is_logged_and_what_nobody_asks_for_is_not(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        async with serving(Echo) as echo:
            await echo.post("/ng-rollout/r-7/echo", {"a": 1})
            await echo.get("/ng-rollout/r-7/fail")
            await echo.post("/echo", {"a": 1})
            await echo.get("/ready")
        said = [record.getMessage() for record in caplog.records if " in " in record.getMessage()]
        assert [line.split(" in ")[0] for line in said] == ["POST /echo: 200", "GET /fail: 500"]

    async def test_errors_are_json(self) -> None:
        async with serving(Echo) as echo:
            missing, wrong = await echo.get("/nowhere"), await echo.get("/echo")
        assert (missing.status, missing.json()["error"]["type"]) == (404, "not_found")
        assert (wrong.status, wrong.json()["error"]["type"]) == (405, "method_not_allowed")
        assert wrong.headers["Allow"] == "POST"

    async def test_an_uncaught_exception_is_a_500_with_type_and_message_and_no_secret(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(Echo, {"api_key": "sk-very-secret"}) as echo:
            reply = await echo.get("/ng-rollout/r7/fail")
        assert reply.status == 500
        assert reply.json() == {"error": {"type": "LookupError", "message": "nothing under ***"}}
        (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert record.exc_info is not None

    async def test_large_bodies_are_taken(self) -> None:
        async with serving(Echo) as echo:
            reply = await echo.post("/echo", b"x" * 20_000_000)
        assert reply.json()["size"] == 20_000_000

    async def test_a_caller_that_leaves_stops_its_request(self) -> None:
        async with serving(Echo) as echo:
            call = asyncio.create_task(echo.get("/slow"))
            await asyncio.wait_for(echo.server.started.wait(), 5)
            call.cancel()
            await asyncio.wait_for(echo.server.cancelled.wait(), 5)

    async def test_a_token_is_asked_for_on_every_route(self) -> None:
        async with serving(Echo, token="t0ken") as echo:
            for path in ("/", "/ready", "/nowhere"):
                assert (await echo.get(path)).status == 401
            assert (await echo.post("/echo", {})).status == 401
            assert (await echo.post("/echo", {}, {"Authorization": "Bearer wrong"})).status == 401
            assert (await echo.post("/echo", {}, {"Authorization": "Bearer t0ken"})).status == 200

    def test_settings_that_cannot_be_used_are_named_without_their_values(self) -> None:
        with pytest.raises(ConfigError, match="limit") as caught:
            Echo(bootstrap_for(Echo, {"limit": "sk-secret"}))
        assert "sk-secret" not in str(caught.value)

    def test_a_configuration_without_its_own_entry_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"needed: .*found: \['resources_servers'\]"):
            Echo(Bootstrap("s", "x", {"x": {"resources_servers": {}}}, "secret"))

    def test_the_address_of_a_reference_comes_from_the_configuration(self) -> None:
        other = {"model": {"responses_api_models": {"openai_model": {"host": "model", "port": 8000}}}}
        server = Echo(bootstrap_for(Echo, config=other))
        assert server.url_of(ServerRef(type="responses_api_models", name="model")) == "http://model:8000"
        with pytest.raises(ConfigError, match="resources_servers/model"):
            server.url_of(ServerRef(type="resources_servers", name="model"))


class TestBootstrap:
    def test_it_is_one_line_of_json(self) -> None:
        data = {"v": 1, "session_id": "s", "server_name": "n", "config": {}, "session_secret": "x", "awaited": ["a"]}
        assert Bootstrap.from_line(json.dumps(data).encode()) == Bootstrap("s", "n", {}, "x", None, ("a",))

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            (b'{"v": 1, "secret": hunter2', "no JSON"),
            (b"[]", "found 'list'"),
            (b'{"v": 2}', "version 1"),
            (b'{"v": 1, "session_id": "s"}', "lacks server_name, config, session_secret"),
        ],
    )
    def test_anything_else_is_refused_without_being_quoted(self, line: bytes, says: str) -> None:
        with pytest.raises(ConfigError, match=says) as caught:
            Bootstrap.from_line(line)
        assert "hunter2" not in str(caught.value)

    def test_its_secrets_are_not_shown(self) -> None:
        assert "hush" not in repr(Bootstrap("s", "n", {}, session_secret="hush", token="hush"))


class TestLogs:
    def test_secrets_are_the_strings_under_keys_that_speak_of_them(self) -> None:
        config = {"openai_api_key": "k1", "nested": [{"password": ["p1", {"x": "p2"}]}], "name": "n", "max_tokens": 5}
        assert secrets_in(config) == {"k1", "p1", "p2"}

    def test_a_setting_that_only_counts_or_names_tokens_and_keys_holds_none(self) -> None:
        config = {"max_tokens_field": "max_completion_tokens", "eos_token": "<|begin_of_text|>", "answer_key": "label"}
        assert secrets_in(config) == set()

    def test_a_line_says_which_server_and_rollout_and_hides_secrets(self) -> None:
        reader, writer = os.pipe()
        handler = JsonLineHandler("mine", Redactor({"sk-12345", "sk-12345-long"}), descriptor=writer)
        record = logging.LogRecord("n", logging.INFO, "f", 1, "key %s", ("sk-12345-long",), None)
        record.__dict__["exit_code"] = 3
        token = current_rollout_id.set("r1")
        handler.emit(record)
        current_rollout_id.reset(token)
        os.close(writer)
        line = json.loads(os.read(reader, 1000))
        os.close(reader)
        said = datetime.fromisoformat(line.pop("time"))
        assert abs(said.timestamp() - record.created) < 1e-3
        expected = {"level": "info", "server": "mine", "message": "key ***", "rollout_id": "r1", "exit_code": 3}
        assert line == expected


class Increment(BaseModel):
    by: int


class Counter(ResourcesServer):
    closed: list[str]

    async def seed_session(self, row: VerifyRequest | dict[str, Any], session: Session) -> None:
        session.state["count"] = 0

    @tool
    async def increment(self, arguments: Increment, session: Session) -> dict[str, int]:
        session.state["count"] += arguments.by
        return {"count": session.state["count"]}

    @tool
    async def crash(self) -> None:
        raise KeyError("gone")

    async def verify(self, row: VerifyRequest, session: Session) -> dict[str, Any]:
        return {"reward": float(session.state["count"] == 3)}


class TestResourcesServer:
    async def test_state_lives_in_the_session_that_the_cookie_names(self) -> None:
        async with serving(Counter) as counter:
            seeded = await counter.post("/seed_session", ROW)
            assert seeded.headers["Set-Cookie"].startswith("ng_session_tested=")
            one = await counter.post("/increment", {"by": 1})
            two = await counter.post("/ng-rollout/r/increment", {"by": 2})
            reply = await counter.post("/verify", verified())
        assert [one.json(), two.json()] == [{"count": 1}, {"count": 3}]
        assert all("Set-Cookie" in answer.headers for answer in (one, two, reply))
        assert reply.json()["reward"] == 1.0

    async def test_a_cookie_that_was_not_signed_here_is_no_session(self) -> None:
        async with serving(Counter) as counter:
            cookie = (await counter.post("/seed_session", ROW)).headers["Set-Cookie"].split(";")[0]
            name, value = cookie.split("=")
            counter.session.cookie_jar.clear()
            forged = value[:-1] + ("0" if value[-1] != "0" else "1")
            reply = await counter.post("/increment", {"by": 1}, {"Cookie": f"{name}={forged}"})
            assert reply.status == 500
            assert (await counter.post("/increment", {"by": 1}, {"Cookie": cookie})).json() == {"count": 1}

    async def test_bad_arguments_are_a_422_that_names_the_field(self) -> None:
        async with serving(Counter) as counter:
            wrong = await counter.post("/increment", {"by": "x"})
            missing = await counter.post("/increment", {})
            junk = await counter.post("/increment", b"{")
            empty = await counter.post("/increment", b"")
        assert (wrong.status, wrong.json()["detail"][0]["loc"]) == (422, ["body", "by"])
        assert (missing.status, missing.json()["error"]["message"]) == (422, "by: Field required")
        assert (junk.status, empty.status) == (422, 422)
        assert "no JSON" in junk.json()["error"]["message"]
        assert "empty" in empty.json()["error"]["message"]

    async def test_a_tool_may_take_nothing_and_its_exception_is_a_json_500(self) -> None:
        async with serving(Counter) as counter:
            reply = await counter.post("/crash", {})
        assert (reply.status, reply.json()["error"]["type"]) == (500, "KeyError")

    async def test_the_parameters_need_an_input_and_the_response_an_output(self) -> None:
        async with serving(Counter) as counter:
            for params in ({}, {"input": None}, {"input": 3}, {"input": ["x"]}):
                reply = await counter.post("/verify", {**verified(), "responses_create_params": params})
                assert (reply.status, reply.json()["detail"][0]["loc"][1]) == (422, "responses_create_params")
            reply = await counter.post("/verify", {**ROW, "response": {"output": "x"}})
            assert (reply.status, reply.json()["detail"][0]["loc"][1]) == (422, "response")

    async def test_verification_can_be_skipped_for_a_fixed_reward(self) -> None:
        config = {"skip_verification": True, "skip_verification_reward": 0.25}
        async with serving(Counter, config=config) as counter:
            reply = (await counter.post("/verify", verified(a=1))).json()
        assert reply == {**verified(a=1), "reward": 0.25, "verification_skipped": True}

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ({"skip_verification": "false"}, "skip_verification must be true or false; found 'false'"),
            (
                {"skip_verification": True, "skip_verification_reward": "high"},
                "skip_verification_reward must be a number; found 'high'",
            ),
            (
                {"skip_verification": True, "skip_verification_reward": True},
                "skip_verification_reward must be a number; found True",
            ),
        ],
    )
    def test_a_setting_of_skipping_that_is_none_is_refused(self, config: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            Counter(bootstrap_for(Counter, config=config)).build_app()

    @pytest.mark.parametrize("name", ["verify", "seed_session", "look"])
    def test_a_method_that_is_no_coroutine_function_is_refused_at_start(self, name: str) -> None:
        def plain(self: ResourcesServer, row: VerifyRequest) -> dict[str, Any]:
            return {"reward": 1.0}

        method = tool(plain) if name == "look" else plain  # type: ignore[type-var]
        plain.__qualname__ = f"Plain.{name}"
        server = type("Plain", (Counter,), {name: method})
        with pytest.raises(ConfigError, match=f"Plain.{name} is awaited: write it as `async def`"):
            server(bootstrap_for(server)).build_app()

    @pytest.mark.parametrize("name", ["aggregate_metrics", "session_closed"])
    def test_and_so_is_a_coroutine_function_where_none_is_awaited(self, name: str) -> None:
        async def late(self: ResourcesServer, given: Any) -> dict[str, Any]:
            return {}

        late.__qualname__ = f"Late.{name}"
        server = type("Late", (Counter,), {name: late})
        with pytest.raises(ConfigError, match=f"Late.{name} is not awaited: write it as `def`"):
            server(bootstrap_for(server)).build_app()

    async def test_a_method_that_is_wrapped_is_what_it_wraps(self) -> None:
        def wrapped(method: Any) -> Any:
            return functools.wraps(method)(lambda *given, **named: method(*given, **named))

        class Wrapped(ResourcesServer):
            @wrapped
            async def verify(self, row: VerifyRequest) -> dict[str, Any]:
                return {"reward": 0.5}

        async with serving(Wrapped) as server:
            assert (await server.post("/verify", verified())).json()["reward"] == 0.5

    async def test_a_verify_that_returns_nothing_is_named(self) -> None:
        class Silent(ResourcesServer):
            async def verify(self, row: VerifyRequest) -> None:  # type: ignore[override]
                pass

        async with serving(Silent) as server:
            error = (await server.post("/verify", verified())).json()["error"]
        assert error["type"] == "TypeError"
        assert "Silent.verify returned None; needed: a dict with the reward" in error["message"]

    def test_a_server_without_verify_and_a_tool_with_a_reserved_name_are_refused(self) -> None:
        class Nothing(ResourcesServer):
            pass

        class Clash(ResourcesServer):
            @tool
            async def reverify_mode(self) -> None:  # type: ignore[override]
                pass

            async def verify(self, row: VerifyRequest) -> dict[str, Any]:
                return {}

        with pytest.raises(ConfigError, match="no verify method"):
            Nothing(bootstrap_for(Nothing)).build_app()
        with pytest.raises(ConfigError, match="reverify_mode"):
            Clash(bootstrap_for(Clash)).build_app()
