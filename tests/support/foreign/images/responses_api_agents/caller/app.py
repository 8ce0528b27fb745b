"""An agent of another make: alternates between a model and the tools of a resources server."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import yaml
from fastapi import FastAPI, Request

CONFIG = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])
NAME = os.environ["NEMO_GYM_CONFIG_PATH"]
SETTINGS = CONFIG[NAME]["responses_api_agents"]["caller"]


def base_url(reference: dict[str, str]) -> str:
    """Where the server answers that a setting refers to."""
    (settings,) = CONFIG[reference["name"]][reference["type"]].values()
    return f"http://{settings['host']}:{settings['port']}"


@asynccontextmanager
async def ask_head_server(app: FastAPI) -> AsyncIterator[None]:
    """What the head server says of this session's servers has to be what stands in this one's own config."""
    head = CONFIG["head_server"]
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://{head['host']}:{head['port']}/global_config_dict_yaml")
    told = yaml.safe_load(answer.raise_for_status().json())
    for reference in (SETTINGS["resources_server"], SETTINGS["model_server"]):
        (settings,) = told[reference["name"]][reference["type"]].values()
        if f"http://{settings['host']}:{settings['port']}" != base_url(reference):
            raise RuntimeError(f"the head server has another address of {reference['name']}: {settings}")
    yield


app = FastAPI(lifespan=ask_head_server)


@app.post("/run")
async def run(request: Request) -> Any:
    row = await request.json()
    resources = httpx.AsyncClient(base_url=base_url(SETTINGS["resources_server"]), timeout=60)
    model = httpx.AsyncClient(base_url=base_url(SETTINGS["model_server"]), timeout=60)
    async with resources, model:  # each with a cookie jar of its own, for this rollout alone
        (await resources.post("/seed_session", json=row)).raise_for_status()
        params = dict(row["responses_create_params"])
        given = params["input"]
        asked = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        said: list[dict[str, Any]] = []
        while True:
            params["input"] = [*asked, *said]
            response = (await model.post("/v1/responses", json=params)).raise_for_status().json()
            said += response["output"]
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            if not calls:
                break
            for call in calls:
                result = await resources.post(
                    f"/{call['name']}", content=call["arguments"], headers={"Content-Type": "application/json"}
                )
                said.append({"type": "function_call_output", "call_id": call["call_id"], "output": result.text})
        verified = await resources.post("/verify", json={**row, "response": {**response, "output": said}})
        return verified.raise_for_status().json()


@app.post("/aggregate_metrics")
async def aggregate_metrics(request: Request) -> Any:
    async with httpx.AsyncClient(base_url=base_url(SETTINGS["resources_server"])) as client:
        return (await client.post("/aggregate_metrics", json=await request.json())).raise_for_status().json()
