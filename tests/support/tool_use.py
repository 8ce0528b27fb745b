"""A scripted model that uses tools, and a whole rollout's servers in a test's own process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from images.responses_api_agents.simple_agent.app import SimpleAgent
from images.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.servers.resources import ResourcesServer
from nemo_gym.servers.testing import Running, serving
from tests.support.scripted_endpoint import ScriptedEndpoint, last_user_text, message_item

Calls = Sequence[tuple[str, Mapping[str, Any]]]
Policy = Callable[[str, list[Any]], Calls]
"""The task in words and what the tools have answered so far -> the calls to make next; none ends the rollout."""


class ToolUser(ScriptedEndpoint):
    """Makes the calls of a policy, those of one answer at the same time, and then says that it is done."""

    def __init__(self, policy: Policy, **options: Any) -> None:
        super().__init__(lambda prompt: "Done.", **options)
        self.policy = policy

    def output_of(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        given = request["input"]
        items = [] if isinstance(given, str) else given
        outputs = [json.loads(item["output"]) for item in items if item.get("type") == "function_call_output"]
        calls = self.policy(last_user_text(given), outputs)
        if not calls:
            return [message_item("Done.")]
        return [
            {
                "id": f"fc_{len(outputs) + position}",
                "type": "function_call",
                "status": "completed",
                "call_id": f"call_{len(outputs) + position}",
                "name": name,
                "arguments": json.dumps(arguments),
            }
            for position, (name, arguments) in enumerate(calls)
        ]


def one_by_one(calls_of: Mapping[str, Calls]) -> Policy:
    """Each task's calls, one in each answer."""
    return lambda task, outputs: calls_of[task][len(outputs) : len(outputs) + 1]


@asynccontextmanager
async def agent_over(
    resources: type[ResourcesServer], endpoint: ScriptedEndpoint, **of_agent: Any
) -> AsyncIterator[Running[SimpleAgent]]:
    """simple_agent before a resources server and openai_model before ``endpoint``, all with real sockets."""
    settings = {"openai_base_url": endpoint.url, "openai_model": "scripted"}
    async with (
        serving(OpenAIModel, settings, name="model") as model,
        serving(resources, name="resources") as server,
    ):
        agent_settings = {
            "model_server": {"type": "responses_api_models", "name": "model"},
            "resources_server": {"type": "resources_servers", "name": "resources"},
            **of_agent,
        }
        async with serving(
            SimpleAgent, agent_settings, name="agent", config={**model.entry(), **server.entry()}
        ) as agent:
            yield agent


async def run_rows(
    resources: type[ResourcesServer], rows: Sequence[Mapping[str, Any]], policy: Policy, **of_agent: Any
) -> list[dict[str, Any]]:
    """What ``/run`` answers for every row, all of them at the same time; ``of_agent`` are settings of the agent."""
    with ToolUser(policy) as endpoint:
        async with agent_over(resources, endpoint, **of_agent) as agent:
            answers = await asyncio.gather(*(agent.post("/run", row) for row in rows))
    assert [answer.status for answer in answers] == [200] * len(rows), answers
    return [answer.json() for answer in answers]
