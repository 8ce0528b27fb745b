from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp import web

from nemo_gym.servers.endpoint import Endpoint
from nemo_gym.servers.json_values import loads, loads_said
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
