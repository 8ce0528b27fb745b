"""Records of rollouts: what is kept of a request, how much, for how long, and that no secret is in it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from pydantic import BaseModel
from tenacity import AsyncRetrying, stop_after_delay, wait_fixed

from images.responses_api_agents.simple_agent.app import SimpleAgent
from images.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.errors import ConfigError
from nemo_gym.servers.logs import Redactor, secrets_in
from nemo_gym.servers.messages import Bootstrap, RunRequest, VerifyRequest
from nemo_gym.servers.records import Exchange, RolloutRecords, kind_of, note_retry, note_verdict
from nemo_gym.servers.resources import ResourcesServer, Session, tool
from nemo_gym.servers.testing import Running, bootstrap_for, serving, serving_app
from tests.support.server_processes import ROOT, bootstrap_line, free_port, get, process, wait_until_ready

OBSERVED = {"observability_enabled": True}
CANARY = 'sk-canary-"0123456789/ü'
HEADER_CANARY = "gateway-canary-abcdef"
MIB = 2**20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "nemo-gym-records"


def records_in(folder: Path, *, budget_bytes: int = MIB, body_bytes: int = 1000, secrets: Any = ()) -> RolloutRecords:
    return RolloutRecords(
        folder, server="mine", redact=Redactor(secrets), budget_bytes=budget_bytes, body_bytes=body_bytes
    )


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def exchange(request: bytes = b"{}", response: bytes | None = b"{}", **fields: Any) -> Exchange:
    given = {"kind": "verification", "method": "POST", "path": "/verify", "status": 200, "elapsed_s": 0.25, **fields}
    return Exchange(**given, request=request, response=response)


class TestStore:
    def test_a_record_is_what_went_over_the_wire(self, folder: Path) -> None:
        records = records_in(folder)
        records.add("r1", exchange('{"a": "ü"}'.encode(), b"no json"))
        (record,) = records.read("r1")
        time = record.pop("time")
        assert record == {
            "rollout_id": "r1", "server": "mine", "kind": "verification", "method": "POST", "path": "/verify",
            "status": 200, "duration_s": 0.25, "request": {"a": "ü"}, "request_bytes": 11, "response": "no json",
            "response_bytes": 7,
        }  # fmt: skip
        assert time.endswith("+00:00")
        assert records.read("r2") == []

    def test_whole_numbers_of_any_size_are_read_back_as_they_were(self, folder: Path) -> None:
        records = records_in(folder)
        records.add("r1", exchange(b'{"n": 123456789012345678901234567890}'))
        (record,) = records.read("r1")
        assert record["request"] == {"n": 123456789012345678901234567890}

    def test_records_come_in_the_order_in_which_the_requests_came(self, folder: Path) -> None:
        records = records_in(folder)
        records.add("r1", exchange(path="/second", elapsed_s=0.0))
        records.add("r1", exchange(path="/first", elapsed_s=30.0))
        assert [record["path"] for record in records.read("r1")] == ["/first", "/second"]

    def test_of_a_long_body_both_ends_are_kept_and_its_size_is_told(self, folder: Path) -> None:
        records = records_in(folder, body_bytes=1000)
        body = b"a" * 5000 + b"z" * 5000
        records.add("r1", exchange(body, b"x" * 1000))
        (record,) = records.read("r1")
        assert record["request"] == {"head": "a" * 750, "tail": "z" * 250}
        assert record["request_bytes"] == 10_000
        assert record["response"] == "x" * 1000

    def test_no_bodies_at_all(self, folder: Path) -> None:
        records = records_in(folder, body_bytes=0)
        records.add("r1", exchange(b'{"tests": 1}'))
        (record,) = records.read("r1")
        assert (record["request"], record["request_bytes"]) == (None, 12)

    @pytest.mark.parametrize("place", range(735, 752))
    def test_a_cut_does_not_leave_half_a_secret(self, place: int, folder: Path) -> None:
        """At the end of the head (750 bytes) and at the beginning of the tail (250)."""
        secret = b"0123456789abcdef"
        records = records_in(folder, body_bytes=1000, secrets=[secret.decode()])
        body = bytearray(b"." * 3000)
        body[place : place + 16] = secret
        body[2750 - (place - 735) : 2750 - (place - 735) + 16] = secret
        records.add("r1", exchange(bytes(body)))
        (record,) = records.read("r1")
        kept = record["request"]["head"] + record["request"]["tail"]
        assert not set(kept) & set("0123456789abcdef")

    def test_quoted_authorization_headers_are_masked_whosever_they_are(self, folder: Path) -> None:
        records = records_in(folder)
        body = b'{"said": "Authorization: Bearer abcdef0123456789; the bearer of news; Basic YWxhZGRpbjpvcGVuc2VzYW1l"}'
        records.add("r1", exchange(body))
        (record,) = records.read("r1")
        assert record["request"]["said"] == "Authorization: Bearer ***; the bearer of news; Basic ***"

    @pytest.mark.parametrize("secret", ["none", "1234"])
    def test_ordinary_words_and_numbers_stay_as_they_were(self, secret: str, folder: Path) -> None:
        records = records_in(folder, secrets=[secret])
        said = {"said": "D: none of them; basic multiplication/division", "at": 1712345678}
        records.add("r1", exchange(json.dumps(said).encode(), json.dumps(said).encode()))
        (record,) = records.read("r1")
        assert (record["request"], record["response"]) == (said, said)

    def test_what_an_endpoint_failed_with_is_kept_without_short_secrets_too(self, folder: Path) -> None:
        async def add(records: RolloutRecords) -> None:
            await records.begin(make_mocked_request("GET", "/"))
            note_retry("HTTP 429: quota of key 1234 used up")
            records.add("r1", exchange())

        records = records_in(folder, secrets=["1234"])
        asyncio.run(add(records))
        (record,) = records.read("r1")
        assert record["endpoint_failures"] == ["HTTP 429: quota of key *** used up"]

    async def test_the_budget_holds_and_the_quietest_rollouts_go_first(self, folder: Path) -> None:
        budget = 256 * 1024
        records = records_in(folder, budget_bytes=budget, body_bytes=8000)
        for number in range(200):
            records.add(f"r{number}", exchange(b"x" * 8000))
            os.utime(folder / f"r{number}", (number, number))
            if records._trimming is not None:
                await records._trimming
        left = sorted(int(path.name[1:]) for path in files_in(folder))
        assert left == list(range(left[0], 200))
        assert 4 <= len(left) <= budget // 8192
        assert [rollout["rollout_id"] for rollout in records.rollouts()][:2] == ["r199", "r198"]
        assert records.rollouts()[0]["time"] == "1970-01-01T00:03:19.000000+00:00"

    def test_a_full_file_system_costs_the_record_and_nothing_else(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        records, write = records_in(folder), os.write
        records.add("r1", exchange(path="/one"))
        monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:40]))
        records.add("r1", exchange(path="/lost"))
        records.add("r1", exchange(path="/lost"))
        monkeypatch.setattr(os, "write", write)
        records.add("r1", exchange(path="/two"))
        records.add("x" * 300, exchange())  # no file can have this name
        assert [record["path"] for record in records.read("r1")] == ["/one", "/two"]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "no room left" in caplog.text

    async def test_what_json_cannot_say_costs_the_record_and_nothing_else(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        records = records_in(folder)
        await records.begin(make_mocked_request("GET", "/"))
        note_verdict({"reward": 2**70})
        records.add("r1", exchange())
        note_verdict({"reward": 2})
        records.add("r1", exchange())
        assert [record["reward"] for record in records.read("r1")] == [2]
        assert len(caplog.records) == 1

    def test_several_processes_write_to_one_rollout(self, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=_add_many, args=(folder, name)) for name in "abc"]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
        found = records_in(folder).read("shared")
        assert sorted(record["path"] for record in found) == sorted(f"/{name}{n}" for name in "abc" for n in range(50))

    def test_nobody_else_may_read_them(self, folder: Path) -> None:
        records_in(folder).add("r1", exchange())
        assert (folder.stat().st_mode & 0o777, (folder / "r1").stat().st_mode & 0o777) == (0o700, 0o600)

    @pytest.mark.parametrize(
        ("server_type", "path", "kind"),
        [
            ("responses_api_models", "/v1/responses", "model_call"),
            ("responses_api_models", "/v1/chat/completions", "model_call"),
            ("responses_api_agents", "/run", "run"),
            ("responses_api_agents", "/v1/responses", "agent_call"),
            ("resources_servers", "/verify", "verification"),
            ("resources_servers", "/seed_session", "seed"),
            ("resources_servers", "/get_weather", "tool_call"),
            ("environment_servers", "/anything", "request"),
        ],
    )
    def test_kinds(self, server_type: str, path: str, kind: str) -> None:
        assert kind_of(server_type, path) == kind


def _add_many(folder: Path, name: str) -> None:
    records = records_in(folder, budget_bytes=64 * MIB, body_bytes=20_000)
    for number in range(50):
        records.add("shared", exchange(name.encode() * 15_000, path=f"/{name}{number}"))


class TestSecrets:
    def test_the_longer_values_of_headers_are_secrets(self) -> None:
        config = {"m": {"extra_headers": {"X-Gateway": HEADER_CANARY, "X-Flag": "true"}, "max_tokens": 5}}
        assert secrets_in(config) == {HEADER_CANARY}

    def test_every_spelling_is_masked(self) -> None:
        redact = Redactor([CANARY])
        spelled = [
            CANARY,
            json.dumps(CANARY),
            json.dumps(CANARY, ensure_ascii=False),
            "sk-canary-%220123456789%2F%C3%BC",
        ]
        assert [redact(text) for text in spelled] == ["***", '"***"', '"***"', "***"]

    def test_in_a_good_answer_only_what_cannot_be_a_word_is_masked(self) -> None:
        redact = Redactor(["none", "sk-0123456789abcdef"])
        assert redact.answer(b"none of sk-0123456789abcdef") == b"none of ***"


# -- whole servers -----------------------------------------------------------------------------------------------------


class Amount(BaseModel):
    by: int


class Counting(ResourcesServer):
    def __init__(self, bootstrap: Bootstrap) -> None:
        super().__init__(bootstrap)
        self.waiting = asyncio.Event()

    async def seed_session(self, row: RunRequest, session: Session) -> None:
        session.state["count"] = 0

    @tool
    async def add(self, amount: Amount, session: Session) -> dict[str, int]:
        session.state["count"] += amount.by
        return {"count": session.state["count"]}

    @tool
    async def wait(self) -> None:
        self.waiting.set()
        await asyncio.sleep(60)

    async def verify(self, row: VerifyRequest, session: Session) -> dict[str, Any]:
        return {"reward": float(session.state["count"])}


def says(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


CALL = {"type": "function_call", "name": "add", "arguments": '{"by": 2}', "call_id": "c1"}
USAGE = {"input_tokens": 10, "output_tokens": 3}
ROW = {"responses_create_params": {"input": "count"}, "note": "kept"}


class ScriptedApi:
    """A Responses API endpoint that gives one ``(status, body)`` after the other; ``{headers}`` is what it was sent."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/responses", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        headers = "; ".join(f"{name}: {value}" for name, value in request.headers.items())
        text = json.dumps(body).replace("{headers}", json.dumps(headers)[1:-1])
        return web.Response(text=text, status=status, content_type="application/json")


async def records_of(server: Running[Any], rollout_id: str, *, at_least: int) -> list[dict[str, Any]]:
    """A rollout's records, once there are so many."""
    found: list[dict[str, Any]] = []
    async for attempt in AsyncRetrying(wait=wait_fixed(0.01), stop=stop_after_delay(5)):
        with attempt:
            found = (await server.get(f"/ng-rollout/{rollout_id}/records")).json()["records"]
            assert len(found) >= at_least
    return found


class Chain:
    """An agent, its model and its resources server."""

    def __init__(self, agent: Running[Any], model: Running[Any], resources: Running[Any]) -> None:
        self.agent, self.model, self.resources = agent, model, resources

    async def records(self, rollout_id: str) -> list[dict[str, Any]]:
        found = []
        for server in (self.agent, self.model, self.resources):
            answer = await server.get(f"/ng-rollout/{rollout_id}/records")
            if answer.status == 200:
                found += answer.json()["records"]
        return sorted(found, key=lambda record: str(record["time"]))


@asynccontextmanager
async def chain(*answers: tuple[int, Any], config: dict[str, Any] = OBSERVED, **more: Any) -> AsyncIterator[Chain]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        url = await enter(serving_app(ScriptedApi(*answers).app()))
        own = {
            "openai_base_url": f"{url}/v1", "openai_api_key": CANARY, "openai_model": "served",
            "extra_headers": {"X-Gateway": HEADER_CANARY}, "retry": {"attempts": 3, "first_wait_s": 0.0},
        }  # fmt: skip
        model = await enter(serving(OpenAIModel, own, name="policy_model", config=config))
        resources = await enter(serving(Counting, more, name="counting", config=config))
        refs = {
            "resources_server": {"type": "resources_servers", "name": "counting"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        entries = {**config, **model.entry(), **resources.entry()}
        agent = await enter(serving(SimpleAgent, refs, name="agent", config=entries))
        yield Chain(agent, model, resources)


def answered(*output: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"id": "r", "model": "their-model", "output": list(output), "usage": USAGE}


class TestServers:
    async def test_a_rollout_is_recorded_on_every_server(self) -> None:
        async with chain(answered(CALL), answered(says("done"))) as servers:
            reply = await servers.agent.post("/ng-rollout/r1/run", ROW)
            await servers.agent.post("/ng-rollout/r2/run", ROW)
            found = await servers.records("r1")
        assert reply.json()["reward"] == 2.0
        assert [(record["server"], record["kind"], record["path"], record["status"]) for record in found] == [
            ("agent", "run", "/run", 200),
            ("counting", "seed", "/seed_session", 200),
            ("policy_model", "model_call", "/v1/responses", 200),
            ("counting", "tool_call", "/add", 200),
            ("policy_model", "model_call", "/v1/responses", 200),
            ("counting", "verification", "/verify", 200),
        ]
        assert {record["rollout_id"] for record in found} == {"r1"}
        run, _, first, added, second, verified = found
        assert (run["request"], run["response"]) == (ROW, reply.json())
        assert first["request"] == ROW["responses_create_params"]
        assert first["response"]["output"][0]["name"] == "add"
        assert (first["model"], first["usage"]["input_tokens"], first["usage"]["output_tokens"]) == (
            "their-model",
            10,
            3,
        )
        assert (added["request"], added["response"]) == ({"by": 2}, {"count": 2})
        assert second["request"]["input"][-1]["output"] == '{"count":2}'
        assert verified["reward"] == verified["response"]["reward"] == 2.0
        assert run["duration_s"] > verified["duration_s"] > 0

    async def test_a_caller_without_the_prefix_may_name_the_rollout_in_the_row(self) -> None:
        async with chain(answered(says("hi"))) as servers:
            await servers.agent.post("/run", {**ROW, "_ng_rollout_id": "named"})
            assert len(await servers.records("named")) == 4
            # an agent written elsewhere, which knows no prefix: the row tells the resources server
            await servers.resources.post("/seed_session", {**ROW, "_ng_rollout_id": "foreign"})
            body = {**ROW, "_ng_rollout_id": "foreign", "response": {"output": []}}
            await servers.resources.post("/verify", body)
            assert [record["kind"] for record in await servers.records("foreign")] == ["seed", "verification"]

    async def test_what_belongs_to_no_rollout_is_not_recorded(self, folder: Path) -> None:
        async with chain(answered(says("hi"))) as servers:
            await servers.agent.post("/run", ROW)
            await servers.agent.get("/ready")
            assert (await servers.agent.get("/ng-rollout")).json() == {"server": "agent", "rollouts": []}
        assert files_in(folder) == []

    async def test_off_there_is_nothing_and_it_says_so(self, folder: Path) -> None:
        async with chain(answered(says("hi")), config={}) as servers:
            assert (await servers.agent.post("/ng-rollout/r1/run", ROW)).status == 200
            for path in ("/ng-rollout/r1/records", "/ng-rollout"):
                answer = await servers.agent.get(path)
                assert (answer.status, answer.json()["error"]["type"]) == (404, "observability_off")
        assert files_in(folder) == []

    async def test_an_unknown_rollout_is_a_404_and_asking_leaves_no_trace(self, folder: Path) -> None:
        async with chain(answered(says("hi"))) as servers:
            for _ in range(2):
                answer = await servers.agent.get("/ng-rollout/nobody/records")
                assert (answer.status, answer.json()["error"]["type"]) == (404, "no_records")
            assert (await servers.agent.get("/ng-rollout/..%2Fetc/records")).status in (404, 422)
        assert files_in(folder) == []

    async def test_without_the_token_nothing_is_recorded_and_nothing_is_told(self, folder: Path) -> None:
        token = "t0ken-0123456789"
        async with serving(Counting, config=OBSERVED, token=token) as server:
            body = {**ROW, "response": {"output": []}, "quoted": token}
            assert (await server.post("/ng-rollout/r1/seed_session", body)).status == 401
            assert files_in(folder) == []
            right = {"Authorization": f"Bearer {token}"}
            assert (await server.post("/ng-rollout/r1/seed_session", body, right)).status == 200
            assert (await server.get("/ng-rollout/r1/records")).status == 401
            answer = await server.get("/ng-rollout/r1/records", right)
        assert [record["status"] for record in answer.json()["records"]] == [200]
        assert token.encode() not in answer.body
        assert b'"quoted":"***"' in answer.body

    async def test_errors_and_callers_that_leave_are_recorded(self) -> None:
        async with serving(Counting, config=OBSERVED) as server:
            assert (await server.post("/ng-rollout/r1/add", {"by": "much"})).status == 422
            call = asyncio.create_task(server.post("/ng-rollout/r1/wait", {}))
            await server.server.waiting.wait()
            call.cancel()
            found = await records_of(server, "r1", at_least=2)
        assert [(record["path"], record["status"]) for record in found] == [("/add", 422), ("/wait", None)]
        assert "by: " in found[0]["response"]["error"]["message"]
        assert "response" not in found[1]

    async def test_what_an_endpoint_failed_with_before_it_answered_is_told(self) -> None:
        async with chain((503, {"error": {"message": "busy"}}), answered(says("hi"))) as servers:
            await servers.model.post("/ng-rollout/r1/v1/responses", {"input": "q"})
            (record,) = await servers.records("r1")
        (failure,) = record["endpoint_failures"]
        assert failure.endswith("answered HTTP 503: busy")

    async def test_tokens_are_told_of_an_answer_that_is_too_long_to_keep(self) -> None:
        async with chain(answered(says("x" * 300_000))) as servers:
            await servers.agent.post("/ng-rollout/r1/run", ROW)
            found = {record["kind"]: record for record in await servers.records("r1")}
        assert found["model_call"]["usage"]["output_tokens"] == 3
        assert set(found["model_call"]["response"]) == {"head", "tail"}
        assert found["model_call"]["response_bytes"] > 300_000
        assert found["verification"]["reward"] == 0.0

    @pytest.mark.parametrize("status", [200, 400, 401, 500])
    async def test_a_key_that_the_endpoint_repeats_is_in_no_record(self, status: int, folder: Path) -> None:
        text = "I was asked with {headers}"
        body = answered(says(text))[1] if status == 200 else {"error": {"message": text}}
        async with chain((status, body)) as servers:
            reply = await servers.agent.post("/ng-rollout/r1/run", ROW)
            found = await servers.records("r1")
        assert [record["kind"] for record in found][:3] == ["run", "seed", "model_call"]
        assert "I was asked with" in json.dumps(found[2]["response"])
        files = files_in(folder)
        assert len(files) == 3
        for text in (reply.body.decode(), json.dumps(found, ensure_ascii=False), *(path.read_text() for path in files)):
            for canary in (CANARY, json.dumps(CANARY)[1:-1], "sk-canary", HEADER_CANARY):
                assert canary not in text

    def test_a_setting_that_is_no_truth_value_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"observability_enabled must be true or false; found 'yes'"):
            Counting(bootstrap_for(Counting, config={"observability_enabled": "yes"}))

    async def test_a_server_can_be_told_to_keep_no_bodies(self) -> None:
        async with serving(Counting, {"record_body_kb": 0}, config=OBSERVED) as server:
            await server.post("/ng-rollout/r1/seed_session", {**ROW, "tests": "hidden"})
            answer = await server.get("/ng-rollout/r1/records")
        assert b"hidden" not in answer.body
        assert answer.json()["records"][0]["request_bytes"] > 50


def test_what_several_workers_record_is_one_answer(tmp_path: Path) -> None:
    port = free_port()
    line = json.loads(bootstrap_line("resources_servers/workers", port, {"num_workers": 2}))
    line["config"].update(OBSERVED)
    body = json.dumps({**ROW, "response": {"output": []}}).encode()
    asked, seen = 0, set[int]()
    program = ROOT / "tests" / "support" / "worker_server.py"
    with process(program, json.dumps(line).encode() + b"\n", TMPDIR=str(tmp_path)):
        wait_until_ready(port)
        deadline = time.monotonic() + 20
        while len(seen) < 2 and time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ng-rollout/r1/verify", body, timeout=20) as reply:
                seen.add(json.load(reply)["worker"])
                asked += 1
        status, answer = get(port, "/ng-rollout/r1/records")
    assert (status, seen) == (200, {0, 1})
    assert len(answer["records"]) == asked
    assert {record["response"]["worker"] for record in answer["records"]} == {0, 1}


class TestForeignServers:
    """Servers written elsewhere, which know neither the prefix nor records."""

    async def test_a_rollout_runs_through_them_and_its_own_servers_record_it(self) -> None:
        seen: list[tuple[str, Any]] = []

        async def seed(request: web.Request) -> web.Response:
            seen.append((request.path, (await request.json()).get("_ng_rollout_id")))
            return web.json_response({})

        async def verify(request: web.Request) -> web.Response:
            seen.append((request.path, (await request.json()).get("_ng_rollout_id")))
            return web.json_response({"reward": 0.5})

        foreign = web.Application()
        foreign.router.add_post("/seed_session", seed)
        foreign.router.add_post("/verify", verify)
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            where = await enter(serving_app(foreign))
            api = await enter(serving_app(ScriptedApi(answered(says("hi"))).app()))
            own = {"openai_base_url": f"{api}/v1", "openai_model": "m"}
            model = await enter(serving(OpenAIModel, own, name="policy_model", config=OBSERVED))
            host, port = where.removeprefix("http://").split(":")
            entry = {"theirs": {"resources_servers": {"x": {"host": host, "port": int(port)}}}}
            refs = {
                "resources_server": {"type": "resources_servers", "name": "theirs"},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
            }
            config = {**OBSERVED, **entry, **model.entry()}
            agent = await enter(serving(SimpleAgent, refs, name="agent", config=config))
            for rollout in ("r1", "r2"):
                reply = await agent.post(f"/ng-rollout/{rollout}/run", {**ROW, "_ng_rollout_id": rollout})
                assert reply.json() == {"reward": 0.5}
            called = (await model.get("/ng-rollout/r2/records")).json()["records"]
        # the prefix was tried once and given up; the row names the rollout there too
        assert seen == [(path, rollout) for rollout in ("r1", "r2") for path in ("/seed_session", "/verify")]
        assert [record["kind"] for record in called] == ["model_call"]
