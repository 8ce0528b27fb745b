"""A till that rings up articles. What is in a session travels in its cookie, which Starlette signs."""

import os
import statistics

import uvicorn
import yaml
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel
from resources_servers.till.prices import PRICES
from starlette.middleware.sessions import SessionMiddleware

CONFIG = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])
NAME = os.environ["NEMO_GYM_CONFIG_PATH"]
SETTINGS = CONFIG[NAME]["resources_servers"]["till"]

app = FastAPI()
app.add_middleware(SessionMiddleware, secret_key=SETTINGS["cookie_secret"], session_cookie=f"{NAME}-session")


class Article(BaseModel):
    name: str
    pieces: int = 1


class Verified(BaseModel):
    verify_responses: list[dict]


@app.post("/seed_session")
async def seed_session(request: Request) -> dict:
    row = await request.json()
    request.session["sum"] = row.get("already_rung_up", 0)
    return {}


@app.post("/ring_up")
async def ring_up(article: Article, request: Request) -> dict:
    if article.name not in PRICES:
        raise HTTPException(404, f"no article {article.name}")
    request.session["sum"] += PRICES[article.name] * article.pieces
    return {"sum": request.session["sum"]}


@app.post("/verify")
async def verify(request: Request) -> dict:
    row = await request.json()
    total = request.session.get("sum")
    return {**row, "reward": 1.0 if total == row["expected_sum"] else 0.0, "sum": total}


@app.post("/aggregate_metrics")
async def aggregate_metrics(body: Verified) -> dict:
    rewards = [reply["reward"] for reply in body.verify_responses]
    metrics = {"mean/reward": statistics.fmean(rewards), "largest_sum": max(r["sum"] for r in body.verify_responses)}
    return {"group_level_metrics": [], "agent_metrics": metrics, "key_metrics": metrics}


if __name__ == "__main__":
    uvicorn.run(app, host=SETTINGS["host"], port=SETTINGS["port"])
