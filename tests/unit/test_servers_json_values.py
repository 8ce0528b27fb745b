from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from aiohttp import web

from nemo_gym.servers.endpoint import Endpoint
from nemo_gym.servers.json_values import dumps, loads, loads_said
from nemo_gym.servers.messages import VerifyRequest
from nemo_gym.servers.resources import ResourcesServer
from nemo_gym.servers.testing import serving, serving_app


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (rb'{"a": "half \ud83d of it"}', {"a": "half \ufffd of it"}),
        (rb'["\udc00\ud800"]', ["\ufffd\ufffd"]),
        (rb'["\ud83d\ude00", "\ud83d"]', ["\U0001f600", "\ufffd"]),
        ('["\\ud83d", "é \U0001f600"]'.encode(), ["\ufffd", "é \U0001f600"]),
        (rb'["\u0041"]', ["A"]),
        (b'{"a": [1, null, "x"]}', {"a": [1, None, "x"]}),
    ],
)
def test_lone_surrogates_are_replaced_and_whole_ones_kept(body: bytes, value: Any) -> None:
    assert loads(body) == value
    assert loads_said(body) == value
    orjson.dumps(loads(body))


@pytest.mark.parametrize("body", [b"", b"{", rb'{"a": "\ud8"}', rb'["\ud800", NaN]', rb'["\ud800" 1]', b'["\\ud800"'])
def test_what_is_no_json_stays_an_error(body: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(body)
    with pytest.raises(orjson.JSONDecodeError):
        loads_said(body)


def test_bytes_that_are_no_text_are_replaced_in_answers_alone() -> None:
    body = b'{"a": "caf\xe9", "b": "\\ud800"}'
    with pytest.raises(orjson.JSONDecodeError):
        loads(body)
    assert loads_said(body) == {"a": "caf\ufffd", "b": "\ufffd"}


@pytest.mark.parametrize("digits", [18, 19, 20, 30, 300])
@pytest.mark.parametrize("before", [b"", b"\\ud83d ", b"0.0012345678901234567, ", b"x" * 1000])
def test_whole_numbers_of_any_size_are_kept_wherever_they_stand(digits: int, before: bytes) -> None:
    number = int("9" * digits)
    for shift in range(9):
        body = b'{"a": "%s", "b": %s[-%d], "c": 1.5}' % (before, b" " * shift, number)
        value = loads(body)
        assert (value["b"], value["c"]) == ([-number], 1.5)
        assert type(value["b"][0]) is int
        assert json.loads(dumps(value)) == value


def test_what_orjson_writes_alone_is_written_beside_wide_numbers_too() -> None:
    value = {2: (2**70, float("nan")), "row": orjson.Fragment(b'{"a":1}'), "seen": {2**70}}
    written = dumps(value, default=list, option=orjson.OPT_NON_STR_KEYS)
    assert written == b'{"2":[1180591620717411303424,null],"row":{"a":1},"seen":[1180591620717411303424]}'
    with pytest.raises(TypeError, match="set"):
        dumps({"seen": {1}})


class Echo(ResourcesServer):
    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        return {"reward": 1.0, "said": row.text()}


async def test_a_response_with_half_a_character_is_judged() -> None:
    response = rb'{"output": [{"type": "message", "content": "\ud83d!"}]}'
    text = rb'{"responses_create_params": {"input": "?"}, "response": ' + response + b"}"
    async with serving(Echo) as server:
        reply = await server.post("/verify", text)
    assert (reply.status, reply.json()["said"]) == (200, "\ufffd!")


async def test_an_endpoints_answer_in_another_encoding_is_an_answer() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b'{"output": [], "note": "caf\xe9 \\ud83d"}', content_type="application/json")

    app = web.Application()
    app.router.add_post("/responses", answer)
    async with serving_app(app) as url:
        endpoint = Endpoint(url)
        assert (await endpoint.post("/responses", b"{}"))["note"] == "caf\ufffd \ufffd"
        await endpoint.close()


def test_a_text_as_deep_as_orjson_goes_is_read_with_a_wide_number_in_it() -> None:
    value = loads(b"[" * 1020 + b"1" * 25 + b"]" * 1020)
    for _ in range(1020):
        (value,) = value
    assert value == pytest.approx(int("1" * 25))
