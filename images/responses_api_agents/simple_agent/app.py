"""An agent that lets a model use a resources server's tools until it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import Field

from nemo_gym.servers.agent import AgentServer, AgentSettings
from nemo_gym.servers.base import RequestError
from nemo_gym.servers.client import Cookies, DownstreamError, Reply
from nemo_gym.servers.json_values import dumps, loads
from nemo_gym.servers.messages import JsonDict, arguments_text, error_body, summed_usage
from nemo_gym.servers.process import run_server


class SimpleAgentSettings(AgentSettings):
    """``max_steps`` bounds the calls to the model in one rollout; None leaves them unbounded.

    The tool calls of one step run one after the other, in the model's order, so that their effects on the session
    are the same in every run; with ``concurrent_tool_calls`` they run at the same time. Without
    ``carry_out_tool_calls`` the model's first answer is the response, with whatever calls are in it.
    """

    max_steps: int | None = Field(default=None, ge=1)
    concurrent_tool_calls: bool = False
    carry_out_tool_calls: bool = True


class SimpleAgent(AgentServer):
    """Seed the session, alternate between model and tools, verify."""

    settings: SimpleAgentSettings

    async def run(self, row: JsonDict, body: bytes) -> bytes:
        resources = self.settings.resources_server
        cookies: Cookies = {}
        seeded = await self.call(resources, "/seed_session", body, cookies)
        _checked(seeded)
        response = await self.respond(row["responses_create_params"], cookies)
        verified_row = dumps({**row, "response": orjson.Fragment(response)})
        verified = await self.call(resources, "/verify", verified_row, cookies)
        return _checked(verified).body

    async def respond(self, params: JsonDict, cookies: Cookies) -> bytes:
        conversation = _as_items(params["input"])
        produced: list[JsonDict] = []
        usage: JsonDict | None = None
        model_cookies: Cookies = {}
        step = 0
        while True:
            step += 1
            request = params if step == 1 else {**params, "input": [*conversation, *produced]}
            reply = await self.call(self.settings.model_server, "/v1/responses", dumps(request), model_cookies)
            response = reply.raise_for_status().json_object()
            output = response.get("output")
            if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
                name = self.settings.model_server.name
                raise DownstreamError(name, "/v1/responses", status=reply.status, detail=f"no output: {reply.text()}")
            calls = [item for item in output if item.get("type") == "function_call"]
            if step == 1 and not (calls and self.settings.carry_out_tool_calls):
                return reply.body
            produced += output
            usage = summed_usage(usage, response.get("usage"))
            # The arguments of an answer that was cut off are cut off too.
            if calls and response.get("status") != "incomplete":
                produced += await self._tool_outputs(calls, cookies)
                if step != self.settings.max_steps:
                    continue
            return dumps({**response, "output": produced, "usage": usage})

    async def _tool_outputs(self, calls: list[JsonDict], cookies: Cookies) -> list[JsonDict]:
        """One output per call, in the calls' order."""
        if not self.settings.concurrent_tool_calls:
            return [await self._tool_output(call, cookies) for call in calls]
        try:
            async with asyncio.TaskGroup() as group:
                outputs = [group.create_task(self._tool_output(call, cookies)) for call in calls]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the rollout has failed; the other calls have been cancelled
        return [output.result() for output in outputs]

    async def _tool_output(self, call: Mapping[str, Any], cookies: Cookies) -> JsonDict:
        name, arguments = str(call.get("name") or ""), arguments_text(call.get("arguments"))
        if not arguments.strip():
            arguments = "{}"  # what many endpoints leave out where a tool takes nothing
        problem = _problem_of(name, arguments)
        if problem is None:
            # Whatever the tool answers goes back to the model, an error too: to read it is the model's task.
            reply = await self.call(self.settings.resources_server, f"/{name}", arguments.encode(), cookies)
            output = reply.text()
        else:
            output = error_body("invalid_tool_call", problem).decode()
        call_id = call.get("call_id") or call.get("id")
        return {"type": "function_call_output", "call_id": call_id, "output": output}


def _checked(reply: Reply) -> Reply:
    """The reply, when it is a 2xx. A row that the resources server refuses is the caller's: its 422 is passed on."""
    if reply.status == 422:
        details = {"server": reply.server, "status": reply.status, "body_tail": reply.tail()}
        message = f"server {reply.server} refuses the row at {reply.path}: {reply.error_message()}"
        raise RequestError(422, "invalid_request", message, details)
    return reply.raise_for_status()


def _as_items(value: Any) -> list[JsonDict]:
    return [{"role": "user", "content": value}] if isinstance(value, str) else list(value)


def _problem_of(name: str, arguments: str) -> str | None:
    """What is wrong with a tool call, for the model to read."""
    if not name or not name.replace("_", "").replace("-", "").replace(".", "").isalnum() or name.startswith("."):
        return f"{name!r} is no name of a tool"
    if name in _NOT_TOOLS:
        return f"there is no tool {name!r}"
    try:
        value = loads(arguments.encode())
    except orjson.JSONDecodeError as error:
        return f"the arguments are no JSON: {error}"
    return None if isinstance(value, dict) else "the arguments are no JSON object"


# Routes of a resources server that are no tools: a model that could call them could score itself.
_NOT_TOOLS = frozenset({"seed_session", "verify", "aggregate_metrics", "reverify_mode", "ready", "close_session"})


if __name__ == "__main__":
    raise SystemExit(run_server(SimpleAgent))
