from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from email.utils import formatdate
from typing import Any

import orjson
import pytest
from aiohttp import web

from images.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.errors import ConfigError
from nemo_gym.servers import endpoint as endpoints
from nemo_gym.servers.testing import Running, bootstrap_for, serving, serving_app

KEY = "sk-do-not-show"
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
RESPONSE = {"id": "r1", "output": [MESSAGE], "usage": {"input_tokens": 1, "output_tokens": 2}}
COMPLETION = {"id": "c1", "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
FAST = {"retry": {"attempts": 4, "budget_s": 2, "first_wait_s": 0.01}}
ONE_MINUTE = endpoints.RetryPolicy(budget_s=60, first_wait_s=0.001)


class Endpoint:
    """Answers each request with the next of its answers, and keeps what it was asked."""

    def __init__(self, *answers: Callable[[], web.Response], models_status: int = 200) -> None:
        self.answers = list(answers)
        self.models_status = models_status
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.at: list[float] = []
        self.in_flight = self.most_in_flight = 0
        self.delay_s = 0.0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/{tail:.+}", self.answer)
        app.router.add_get("/v1/models", self.models)
        return app

    async def models(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, {}, dict(request.headers)))
        return web.json_response({"data": []}, status=self.models_status)

    async def answer(self, request: web.Request) -> web.Response:
        self.at.append(time.monotonic())
        self.asked.append((request.path, orjson.loads(await request.read()), dict(request.headers)))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self.delay_s)
        self.in_flight -= 1
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()


def says(body: Any, status: int = 200, **headers: str) -> Callable[[], web.Response]:
    return lambda: web.json_response(body, status=status, headers=headers)


@asynccontextmanager
async def model_before(endpoint: Endpoint, **settings: Any) -> AsyncIterator[Running[OpenAIModel]]:
    async with serving_app(endpoint.app()) as url:
        own = {"openai_base_url": f"{url}/v1", "openai_api_key": KEY, "openai_model": "served", **FAST, **settings}
        async with serving(OpenAIModel, own, name="policy_model") as model:
            yield model


class Clock:
    """What the endpoint takes for the time; it stands still until somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, answer: Callable[[], web.Response]) -> Callable[[], web.Response]:
        def answer_late() -> web.Response:
            self.now += seconds
            return answer()

        return answer_late


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(endpoints, "time", clock)
    return clock


def free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


class TestForwarding:
    async def test_a_request_goes_out_with_the_configured_model_and_key(self) -> None:
        endpoint = Endpoint(says(RESPONSE))
        params = {"input": [{"role": "user", "content": "q"}], "model": "other", "temperature": 0.5, "new": {"a": 1}}
        async with model_before(endpoint, extra_headers={"X-Org": "o"}) as model:
            reply = await model.post("/ng-rollout/r1/v1/responses", params)
        ((path, body, headers),) = endpoint.asked
        assert (path, body) == ("/v1/responses", {**params, "model": "served"})
        assert (headers["Authorization"], headers["X-Org"]) == (f"Bearer {KEY}", "o")
        assert reply.status == 200
        answer = reply.json()
        assert answer["output"][0]["content"][0]["text"] == "hi"
        assert (answer["model"], answer["tools"], answer["usage"]["total_tokens"]) == ("served", [], 3)

    async def test_without_a_key_no_authorization_is_sent(self) -> None:
        endpoint = Endpoint(says(RESPONSE))
        async with model_before(endpoint, openai_api_key="") as model:
            await model.post("/v1/responses", {"input": "q"})
        assert "Authorization" not in endpoint.asked[0][2]

    async def test_body_fields_are_added_and_parameters_dropped(self) -> None:
        endpoint = Endpoint(says(RESPONSE))
        async with model_before(endpoint, extra_body={"top_k": 5}, drop_params=["temperature"]) as model:
            await model.post("/v1/responses", {"input": "q", "temperature": 0, "top_k": 1})
        assert endpoint.asked[0][1] == {"input": "q", "model": "served", "top_k": 5}

    async def test_chat_completions_are_forwarded_and_filled(self) -> None:
        endpoint = Endpoint(says(COMPLETION))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "q"}]})
        assert endpoint.asked[0][0] == "/v1/chat/completions"
        assert reply.json()["choices"][0] == {
            "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}
        }  # fmt: skip

    async def test_an_endpoint_with_chat_completions_only_is_asked_in_its_words(self) -> None:
        endpoint = Endpoint(says(COMPLETION))
        async with model_before(endpoint, api="chat_completions") as model:
            reply = await model.post("/v1/responses", {"input": "q", "max_output_tokens": 4})
        path, body, _ = endpoint.asked[0]
        assert path == "/v1/chat/completions"
        assert body == {"messages": [{"role": "user", "content": "q"}], "max_tokens": 4, "model": "served"}
        assert reply.json()["output"][0]["content"][0]["text"] == "hi"

    async def test_no_more_requests_than_allowed_are_open_at_once(self) -> None:
        endpoint = Endpoint(says(RESPONSE))
        endpoint.delay_s = 0.02
        async with model_before(endpoint, max_concurrent_requests=3) as model:
            replies = await asyncio.gather(*(model.post("/v1/responses", {"input": "q"}) for _ in range(12)))
        assert {reply.status for reply in replies} == {200}
        assert endpoint.most_in_flight == 3


class TestBadRequests:
    @pytest.mark.parametrize(
        ("path", "body", "field"),
        [
            ("/v1/responses", {}, "input"),
            ("/v1/responses", {"input": 1}, "input"),
            ("/v1/responses", {"input": "x", "stream": True}, "stream"),
            ("/v1/responses", {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
            ("/v1/responses", {"input": "x", "tools": ["a"]}, "tools: needed: a list of objects"),
            ("/v1/responses", {"input": "x", "text": "json"}, "text: needed: an object; found str"),
            ("/v1/responses", {"input": [{"role": "user", "content": 5}]}, "input.0.content: needed"),
            ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "thinking": "on"}, "thinking: needed"),
            ("/v1/chat/completions", {"messages": []}, "messages"),
            ("/v1/chat/completions", [], "body"),
        ],
    )
    async def test_they_are_a_422_that_names_the_field_and_go_nowhere(self, path: str, body: Any, field: str) -> None:
        endpoint = Endpoint(says(RESPONSE))
        async with model_before(endpoint, api="chat_completions") as model:
            reply = await model.post(path, body)
        assert reply.status == 422
        assert field in reply.json()["error"]["message"]
        assert endpoint.asked == []


class TestFailures:
    @pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
    async def test_what_may_pass_is_asked_again(self, status: int) -> None:
        endpoint = Endpoint(says({"error": {"message": "busy"}}, status), says({}, status), says(RESPONSE))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert reply.status == 200
        assert len(endpoint.asked) == 3

    @pytest.mark.parametrize(("status", "passed_on"), [(429, 429), (500, 502), (503, 502), (504, 504)])
    async def test_attempts_end_with_the_endpoints_own_message(self, status: int, passed_on: int) -> None:
        endpoint = Endpoint(says({"error": {"message": f"quota of {KEY} used up"}}, status))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert len(endpoint.asked) == 4
        assert reply.status == passed_on
        error = reply.json()["error"]
        assert (error["status"], error["type"]) == (status, "endpoint_error")
        assert "quota of *** used up" in error["message"]
        assert "/v1/responses answered HTTP" in error["message"]
        assert KEY.encode() not in reply.body

    @pytest.mark.parametrize("after", ["0.3", "date"])
    async def test_retry_after_is_obeyed(self, after: str) -> None:
        value = formatdate(time.time() + 2, usegmt=True) if after == "date" else after
        endpoint = Endpoint(says({}, 429, **{"Retry-After": value}), says(RESPONSE))
        async with model_before(endpoint, retry={"budget_s": 5, "first_wait_s": 0.001}) as model:
            assert (await model.post("/v1/responses", {"input": "q"})).status == 200
        assert endpoint.at[1] - endpoint.at[0] >= 0.29

    async def test_a_wait_beyond_the_budget_is_not_begun(self) -> None:
        endpoint = Endpoint(says({"error": "come back tomorrow"}, 429, **{"Retry-After": "86400"}))
        started = time.monotonic()
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert time.monotonic() - started < 20
        assert (reply.status, len(endpoint.asked)) == (429, 1)
        assert "come back tomorrow" in reply.json()["error"]["message"]

    async def test_the_budget_is_for_attempts_and_not_for_standing_in_line(self, clock: Clock) -> None:
        busy = says({"error": "busy"}, 429)
        endpoint = Endpoint(clock.after(1000, says(RESPONSE)), busy, says(RESPONSE))
        async with serving_app(endpoint.app()) as url:
            asker = endpoints.Endpoint(f"{url}/v1", max_concurrent_requests=1, retry=ONE_MINUTE)
            answers = await asyncio.gather(*(asker.post("/responses", b"{}") for _ in range(2)))
            await asker.close()
        assert ([answer["id"] for answer in answers], len(endpoint.asked)) == (["r1", "r1"], 3)

    @pytest.mark.parametrize(("attempt_s", "attempts"), [(70, 1), (35, 2), (25, 3)])
    async def test_attempts_that_take_long_use_the_budget_up(
        self, attempt_s: float, attempts: int, clock: Clock
    ) -> None:
        endpoint = Endpoint(clock.after(attempt_s, says({"error": "busy"}, 429)))
        async with serving_app(endpoint.app()) as url:
            asker = endpoints.Endpoint(f"{url}/v1", retry=ONE_MINUTE)
            with pytest.raises(endpoints.EndpointError, match="HTTP 429: busy"):
                await asker.post("/responses", b"{}")
            await asker.close()
        assert len(endpoint.asked) == attempts

    @pytest.mark.parametrize("status", [400, 404, 413, 422])
    async def test_a_refusal_is_passed_on_at_once(self, status: int) -> None:
        endpoint = Endpoint(says({"error": {"message": "context too long"}}, status))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, len(endpoint.asked)) == (status, 1)
        assert "context too long" in reply.json()["error"]["message"]

    async def test_a_refused_key_is_named_and_not_shown(self) -> None:
        endpoint = Endpoint(says({"error": {"message": f"bad key {KEY}"}}, 401))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert reply.status == 401
        assert "openai_api_key" in reply.json()["error"]["message"]
        assert KEY.encode() not in reply.body

    @pytest.mark.parametrize(
        "body", [{}, {"output": None}, {"output": "text"}, {"output": [1]}, [], "text", {"choices": []}]
    )
    @pytest.mark.parametrize("api", ["responses", "chat_completions"])
    async def test_junk_is_a_502_that_names_the_endpoint(self, body: Any, api: str) -> None:
        endpoint = Endpoint(says(body))
        async with model_before(endpoint, api=api) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, len(endpoint.asked)) == (502, 1)
        error = reply.json()["error"]
        assert error["type"] == "endpoint_junk"
        assert "127.0.0.1" in error["endpoint"]

    async def test_a_page_instead_of_json_is_junk_too_and_its_end_is_shown(self) -> None:
        endpoint = Endpoint(lambda: web.Response(text="<html>welcome</html>"))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert reply.status == 502
        assert reply.json()["error"]["body_tail"] == "<html>welcome</html>"

    async def test_an_error_that_comes_with_http_200_is_an_error(self) -> None:
        endpoint = Endpoint(says({"error": {"message": "overloaded"}}))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert reply.status == 502
        assert "overloaded" in reply.json()["error"]["message"]

    @pytest.mark.parametrize(("code", "status"), [(429, 429), (503, 502), ("rate_limit", 502), (None, 502)])
    async def test_and_is_asked_again_where_an_error_status_would_be(self, code: Any, status: int) -> None:
        overloaded = says({"error": {"message": "overloaded", "code": code}, "output": []})
        endpoint = Endpoint(overloaded, says(RESPONSE))
        async with model_before(endpoint) as model:
            assert (await model.post("/v1/responses", {"input": "q"})).status == 200
        assert len(endpoint.asked) == 2
        async with model_before(Endpoint(overloaded)) as model:
            assert (await model.post("/v1/responses", {"input": "q"})).status == status

    async def test_a_refusal_that_comes_with_http_200_is_passed_on_at_once(self) -> None:
        endpoint = Endpoint(says({"error": {"message": "context too long", "code": 400}}))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, len(endpoint.asked)) == (400, 1)

    async def test_a_response_that_failed_is_no_answer(self) -> None:
        failed = {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "it broke"}}
        endpoint = Endpoint(says(failed))
        async with model_before(endpoint) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, len(endpoint.asked)) == (502, 4)
        assert "it broke" in reply.json()["error"]["message"]
        async with model_before(Endpoint(says({**RESPONSE, "status": "queued"}))) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, reply.json()["error"]["type"]) == (502, "endpoint_junk")

    async def test_an_answer_of_odd_fields_is_filled(self) -> None:
        call = {"type": "function_call", "name": "f", "arguments": {"a": 1}}
        odd = {"output": [{"type": "message", "content": None}, call], "usage": [], "tools": None, "created_at": None}
        async with model_before(Endpoint(says(odd))) as model:
            answer = (await model.post("/v1/responses", {"input": "q"})).json()
        assert (answer["usage"], answer["tools"], answer["output"][0]["content"]) == (None, [], [])
        assert (answer["output"][1]["arguments"], answer["output"][1]["status"]) == ('{"a":1}', "completed")

    async def test_an_endpoint_that_refuses_connections_is_a_502(self) -> None:
        settings = {"openai_base_url": f"http://127.0.0.1:{free_port()}/v1", "openai_model": "m", **FAST}
        async with serving(OpenAIModel, settings) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, reply.json()["error"]["type"]) == (502, "endpoint_unreachable")

    async def test_silence_beyond_the_deadline_is_a_504_and_not_asked_again(self) -> None:
        endpoint = Endpoint(says(RESPONSE))
        endpoint.delay_s = 0.5
        async with model_before(endpoint, request_timeout_s=0.1) as model:
            reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, reply.json()["error"]["type"]) == (504, "endpoint_timeout")
        assert len(endpoint.asked) == 1

    async def test_a_connection_that_is_not_taken_ends_in_time_and_is_tried_again(self) -> None:
        with socket.socket() as full, ExitStack() as waiting:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):  # more than its queue takes: who comes now gets no answer at all
                client = waiting.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(full.getsockname())
            settings = {"openai_base_url": f"http://127.0.0.1:{full.getsockname()[1]}/v1", "openai_model": "m"}
            retry = {"attempts": 2, "budget_s": 5, "first_wait_s": 0.01}
            async with serving(OpenAIModel, {**settings, "connect_timeout_s": 0.2, "retry": retry}) as model:
                started = time.monotonic()
                reply = await model.post("/v1/responses", {"input": "q"})
        assert (reply.status, reply.json()["error"]["type"]) == (504, "endpoint_timeout")
        assert 0.4 <= time.monotonic() - started < 20


class TestReadiness:
    async def test_any_answer_but_a_refused_key_is_ready_and_remembered(self) -> None:
        endpoint = Endpoint(says(RESPONSE), models_status=404)
        async with model_before(endpoint) as model:
            assert [(await model.get("/ready")).status for _ in range(3)] == [200, 200, 200]
        assert [path for path, _, _ in endpoint.asked] == ["/v1/models"]
        assert endpoint.asked[0][2]["Authorization"] == f"Bearer {KEY}"

    @pytest.mark.parametrize("status", [401, 403])
    async def test_a_refused_key_has_failed(self, status: int) -> None:
        async with model_before(Endpoint(says(RESPONSE), models_status=status)) as model:
            reply = await model.get("/ready")
        state = reply.json()
        assert (reply.status, state["status"], state["key"]) == (503, "failed", "openai_api_key")
        assert f"HTTP {status}" in state["detail"]
        assert KEY.encode() not in reply.body

    async def test_a_refused_connection_is_waited_for(self) -> None:
        port = free_port()
        settings = {"openai_base_url": f"http://127.0.0.1:{port}/v1", "openai_model": "m", "openai_api_key": KEY}
        async with serving(OpenAIModel, settings) as model:
            state = (await model.get("/ready")).json()
        assert (state["status"], state["key"]) == ("waiting", "openai_base_url")
        assert state["address"] == f"http://127.0.0.1:{port}/v1"

    @pytest.mark.parametrize(
        "address",
        ["http://no-such-host.invalid/v1", "no address", "ftp://127.0.0.1/v1", "http://[::1/v1", "http://a..b/v1"],
    )
    async def test_an_address_that_leads_nowhere_has_failed(self, address: str) -> None:
        async with serving(OpenAIModel, {"openai_base_url": address, "openai_model": "m"}) as model:
            state = (await model.get("/ready")).json()
        assert (state["status"], state["key"]) == ("failed", "openai_base_url")
        assert state["detail"]


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("openai_api_key", f"{KEY}\n", r"openai_api_key: .*as a header carries it; found: a line break"),
        ("openai_api_key", f" {KEY}", r"openai_api_key: .*found: white space at an end"),
        ("openai_api_key", f"{KEY}\0", r"openai_api_key: .*found: a control character"),
        ("extra_headers", {"X-Org": f"{KEY}\r\nX: 1"}, r"extra_headers: .*X-Org: needed: .*found: a line break"),
        ("extra_headers", {f"Authorization: {KEY}": ""}, r"extra_headers: .*a header's name is letters"),
    ],
)
def test_what_no_header_can_carry_is_refused_at_start_and_not_shown(setting: str, value: Any, says: str) -> None:
    settings = {"openai_base_url": "http://127.0.0.1/v1", "openai_model": "m", setting: value}
    with pytest.raises(ConfigError, match=says) as refused:
        OpenAIModel(bootstrap_for(OpenAIModel, settings))
    assert KEY not in str(refused.value)


def test_missing_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="openai_base_url: Field required; openai_model: Field required"):
        OpenAIModel(bootstrap_for(OpenAIModel))
