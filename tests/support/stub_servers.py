"""Servers that misbehave as their settings say: two tiny images and a benchmark, in a search root of the test's own.

The images' content never changes, so they are built once on each engine, in about a second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BENCHMARK = "stub"
MODEL_TYPE = "stub_model"
SERVER = "stub_server"
MODEL = "policy_model"
SERVERS = {"registry", SERVER, MODEL}

APP = '''
"""A server of the standard library alone. ``acts`` in its settings says what it does besides answering."""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

line = json.loads(sys.stdin.readline())
((_, ((_, settings),)),) = [(kind, list(of.items())) for kind, of in line["config"][line["server_name"]].items()]
acts = settings.get("acts") or {}

if acts.get("ignores_sigterm"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for text in acts.get("prints", []):
    print(text, file=sys.stderr, flush=True)
if "prints_setting" in acts:
    print("my settings:", acts["prints_setting"], "=", settings[acts["prints_setting"]], file=sys.stderr, flush=True)
if "flood_mb" in acts:
    line_of_log = "x" * acts.get("flood_line", 1000)
    for number in range(acts["flood_mb"] * 1_000_000 // len(line_of_log)):
        print(number, line_of_log, file=sys.stderr)
    print("the flood is over", file=sys.stderr, flush=True)
if "memory_mb" in acts:
    held = b"x" * (acts["memory_mb"] * 1_000_000)
if "exits" in acts:
    sys.exit(acts["exits"])
time.sleep(acts.get("listens_after_s", 0))

born = time.monotonic()
identity = {"server": acts.get("says_it_is", line["server_name"]), "session_id": line["session_id"]}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        late = time.monotonic() - born < acts.get("unavailable_s", 0)
        body = json.dumps({"status": "waiting" if late else "ready", **identity}).encode()
        self.send_response(503 if late else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def die():
    time.sleep(acts["dies_after_s"])
    os._exit(3)


if "dies_after_s" in acts:
    threading.Thread(target=die, daemon=True).start()
ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
'''

# A Dockerfile of its own: one step less to build than the generic one.
DOCKERFILE = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY app/app.py /opt/server/app/app.py
"""

MODEL_CONFIG = f"""
{MODEL}:
  responses_api_models:
    {MODEL_TYPE}: {{entrypoint: app.py, description: Answers nothing., acts: {{}}}}
"""


def make_stubs(root: Path) -> None:
    """The model image, the server image and the benchmark ``stub``."""
    make_image(root, "responses_api_models", MODEL_TYPE)
    (root / "images/responses_api_models" / MODEL_TYPE / "config.yaml").write_text(MODEL_CONFIG, encoding="utf-8")
    make_benchmark(root, BENCHMARK)


def make_benchmark(root: Path, name: str, more_of_the_dockerfile: str = "") -> None:
    """A benchmark, and the image of its one server besides the model: the server image is named as it."""
    make_image(root, "resources_servers", name, more_of_the_dockerfile)
    folder = root / "benchmarks" / name
    folder.mkdir(parents=True)
    settings = {
        "entrypoint": "app.py",
        "domain": "other",
        "description": "Misbehaves.",
        "judge_base_url": "http://127.0.0.1:9/v1",  # nobody listens there; it makes the session open a relay
        "acts": {},
    }
    config = {SERVER: {"resources_servers": {name: settings}}}
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")


def make_image(root: Path, server_type: str, name: str, more_of_the_dockerfile: str = "") -> None:
    folder = root / "images" / server_type / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP, encoding="utf-8")
    (folder / "Dockerfile").write_text(DOCKERFILE.lstrip() + more_of_the_dockerfile, encoding="utf-8")


def acting(
    acts: dict[str, Any] | None = None,
    *,
    benchmark: str = BENCHMARK,
    container: dict[str, Any] | None = None,
    model_acts: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Config overrides that make the servers act; ``more`` goes to the top level."""
    settings: dict[str, Any] = {"acts": acts or {}}
    if container:
        settings["container"] = container
    return {
        SERVER: {"resources_servers": {benchmark: settings}},
        MODEL: {"responses_api_models": {MODEL_TYPE: {"acts": model_acts or {}}}},
        **more,
    }
