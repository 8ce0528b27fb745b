"""The server around the model; the model itself is run by the integration tests, in its image."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from images.responses_api_models.llama_cpp_model import app
from images.responses_api_models.llama_cpp_model.app import (
    LlamaCppModel,
    LlamaCppSettings,
    available_cpus,
    find_template,
    find_weights,
)
from nemo_gym.errors import ConfigError
from nemo_gym.servers.testing import Running, serving

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


class Worker:
    """A worker that says what it is told to."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.busy = self.most_busy = 0
        self.knows_tools = True

    def handle_chat_completions(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        self.started.set()
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        self.go_on.wait(5)
        self.busy -= 1
        if isinstance(self.answer, Exception):
            raise self.answer
        message = {"role": "assistant", "content": "hi"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return self.answer or {"id": "c", "choices": [choice], "usage": USAGE, "model": "/path/in/the/image.gguf"}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Worker:
    """The only worker of the servers that the test starts."""
    made = Worker()
    monkeypatch.setattr(app, "start_worker", lambda weights, settings: made)
    monkeypatch.setattr(app, "knows_tools", lambda worker: worker.knows_tools)
    return made


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    weights = tmp_path / "tiny.gguf"
    weights.write_bytes(b"GGUF")
    return {"weights": str(weights), "workers": 1, "model_name": "tiny"}


@retry(
    wait=wait_fixed(0.01), stop=stop_after_delay(10), retry=retry_if_result(lambda state: state["status"] == "waiting")
)
async def settled(model: Running[LlamaCppModel]) -> Any:
    """The server's state once it has loaded, or failed to."""
    return (await model.get("/ready")).json()


async def test_responses_and_chat_completions_are_answered(worker: Worker, settings: dict[str, Any]) -> None:
    async with serving(LlamaCppModel, settings) as model:
        await settled(model)
        response = (await model.post("/v1/responses", {"input": "q", "max_output_tokens": 4})).json()
        completion = (await model.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "q"}]})).json()
    assert response["output"][0]["content"][0]["text"] == "hi"
    assert (response["model"], response["usage"]["input_tokens"]) == ("tiny", 5)
    assert (completion["model"], completion["choices"][0]["message"]["content"]) == ("tiny", "hi")
    messages = [{"role": "user", "content": "q"}]
    assert worker.asked == [
        {"temperature": 0, "max_tokens": 4, "messages": messages, "stream": False},
        {"temperature": 0, "max_tokens": 512, "messages": messages, "stream": False},
    ]


async def test_a_worker_has_one_request_at_a_time_even_when_callers_leave(
    worker: Worker, settings: dict[str, Any]
) -> None:
    worker.go_on.clear()
    async with serving(LlamaCppModel, settings) as model:
        await settled(model)
        left = asyncio.create_task(model.post("/v1/responses", {"input": "left"}))
        await asyncio.to_thread(worker.started.wait, 5)
        left.cancel()
        others = [asyncio.create_task(model.post("/v1/responses", {"input": "q"})) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert len(worker.asked) == 1
        worker.go_on.set()
        assert {(await other).status for other in others} == {200}
    assert worker.most_busy == 1


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        ({"error": {"code": 400, "type": "exceed_context_size_error", "message": "too long"}}, 400, "too long"),
        ({"error": {"code": 500, "message": "broken"}}, 500, "broken"),
        (ValueError("bad messages"), 400, "bad messages"),
        (RuntimeError("no images"), 400, "no images"),
        ({"choices": []}, 500, "no choices"),
    ],
)
async def test_what_llama_cpp_refuses_is_said(
    worker: Worker, settings: dict[str, Any], answer: Any, status: int, says: str
) -> None:
    worker.answer = answer
    async with serving(LlamaCppModel, settings) as model:
        await settled(model)
        reply = await model.post("/v1/responses", {"input": "q"})
        again = await model.post("/v1/responses", {"input": "q"})
    assert (reply.status, again.status) == (status, status)
    assert says in reply.json()["error"]["message"]


async def test_tools_that_the_template_would_drop_are_refused(worker: Worker, settings: dict[str, Any]) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    worker.knows_tools = False
    async with serving(LlamaCppModel, settings) as model:
        await settled(model)
        reply = await model.post("/v1/responses", {"input": "q", "tools": [tool]})
        without = await model.post("/v1/responses", {"input": "q", "tools": []})
    assert (reply.status, without.status) == (422, 200)
    assert "tools: the chat template of these weights" in reply.json()["error"]["message"]
    worker.knows_tools = True
    async with serving(LlamaCppModel, settings) as model:
        await settled(model)
        assert (await model.post("/v1/responses", {"input": "q", "tools": [tool]})).status == 200
    function = {"name": "f", "parameters": {"type": "object"}}
    assert worker.asked[-1]["tools"] == [{"type": "function", "function": function}]


def test_the_bundled_weights_have_a_template_of_ours_and_others_their_own(tmp_path: Path) -> None:
    assert "tool_call" in find_template(LlamaCppSettings())
    assert find_template(LlamaCppSettings(weights="x.gguf")) == ""
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages }}")
    assert find_template(LlamaCppSettings(chat_template=str(own))) == "{{ messages }}"
    with pytest.raises(ConfigError, match="chat template /nowhere is not in the image"):
        find_template(LlamaCppSettings(chat_template="/nowhere"))


async def test_weights_that_are_not_there_have_failed(worker: Worker) -> None:
    async with serving(LlamaCppModel, {"weights": "/nowhere/x.gguf"}) as model:
        state = await settled(model)
        reply = await model.post("/v1/responses", {"input": "q"})
    assert (state["status"], state["key"]) == ("failed", "tested.weights")
    assert "/nowhere/x.gguf" in state["detail"]
    assert reply.status == 503


def test_the_weights_are_found_in_their_package_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / app.WEIGHTS_PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("import a_framework_that_is_not_installed")
    (package / "small.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="not installed"):
        find_weights(None)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_weights(None) == package / "small.gguf"
    assert app.WEIGHTS_PACKAGE not in sys.modules


def test_there_is_at_least_one_cpu() -> None:
    assert 1 <= available_cpus() <= 4096
