"""A benchmark that is served for the tests that ask for it, with a model that does what each test wants."""

from __future__ import annotations

import asyncio

import pytest

from nemo_gym.environment import TaskRunner
from nemo_gym.testing import ModelEndpointContainer, Reply, Rule, Script, ServedBenchmark, ToolCall

TASK = "add-1"  # "Add 26 to the counter.", which shows 39
DONE = Rule(contains='"value"', reply=Reply(text="Done."))  # what the tool answered

pytestmark = pytest.mark.served_benchmark("counter")


def calling(tool: str, by: int) -> Rule:
    return Rule(contains="Add 26", reply=Reply(tool_calls=(ToolCall(name=tool, arguments={"by": by}),)))


def reward(runner: TaskRunner) -> float:
    return asyncio.run(runner.run_task(TASK)).rewards[0]


def test_the_right_tool(model_endpoint: ModelEndpointContainer, task_runner: TaskRunner) -> None:
    model_endpoint.load(Script(rules=(calling("increment", 26), DONE)))
    assert reward(task_runner) == 1.0
    told, answered = model_endpoint.asked()
    assert told.text == "Add 26 to the counter."
    assert '"value": 65' in answered.text or '"value":65' in answered.text


def test_the_wrong_tool(model_endpoint: ModelEndpointContainer, task_runner: TaskRunner) -> None:
    model_endpoint.load(Script(rules=(calling("decrement", 26), DONE)))
    assert reward(task_runner) == 0.0


def test_a_model_that_is_out_of_order_once(model_endpoint: ModelEndpointContainer, task_runner: TaskRunner) -> None:
    once = Rule(reply=Reply(status=503, error="busy"), times=1)
    model_endpoint.load(Script(rules=(once, calling("increment", 26), DONE)))
    assert reward(task_runner) == 1.0
    assert [asked.status for asked in model_endpoint.asked()] == [503, 200, 200]


@pytest.mark.served_benchmark(
    "counter", overrides={"policy_model": {"responses_api_models": {"openai_model": {"api": "chat_completions"}}}}
)
def test_an_endpoint_with_chat_completions_only(
    model_endpoint: ModelEndpointContainer, served_benchmark: ServedBenchmark, task_runner: TaskRunner
) -> None:
    model_endpoint.load(Script(rules=(calling("increment", 26), DONE)))
    assert reward(task_runner) == 1.0
    assert {asked.path for asked in model_endpoint.asked()} == {"/v1/chat/completions"}
    assert len(served_benchmark.servers) == 3
