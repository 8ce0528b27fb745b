"""Servers that were written elsewhere, with others of ours: served through config alone, scored, and removed."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import PlannedBenchmark, TaskRunner, plan_benchmark, serve_benchmark
from nemo_gym.errors import ConfigError
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import containers_of, get, session_of
from tests.support.tool_use import ToolUser, one_by_one

ELSEWHERE = Path(__file__).parents[1] / "support" / "foreign"
TILL = "shopping_till"

SHOPPING = {
    "Buy two apples and a bread.": [("ring_up", {"name": "apple", "pieces": 2}), ("ring_up", {"name": "bread"})],
    "Buy three candles.": [("ring_up", {"name": "camel"}), ("ring_up", {"name": "candle", "pieces": 2})],  # one short
}
COUNTING = {
    "Add seven to the counter.": [("read", {}), ("increment", {"by": 7})],
    "Take two away from the counter.": [("decrement", {"by": 2}), ("read", {})],
}

# The environment of a container's one process that has a configuration in it.
READ_ENVIRONMENT = """
import json, os, pathlib
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    pairs = [v.partition("=")[::2] for v in (entry / "environ").read_text().split(chr(0)) if v]
    if "NEMO_GYM_CONFIG_DICT" in dict(pairs):
        print(json.dumps([int(entry.name), os.stat(entry).st_uid, dict(pairs)]))
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A search root of its own with what was written elsewhere."""
    root = tmp_path / "elsewhere"
    shutil.copytree(ELSEWHERE, root)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(root))
    return root


async def rewards_of(planned: PlannedBenchmark, registry_server: BaseServerConfig) -> dict[str, list[float]]:
    async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
        results = await asyncio.gather(*(runner.run_task(task_id, num_repeats=3) for task_id in planned.task_ids()))
    return {result.task_id: result.rewards for result in results}


def environment_of(engine: docker.APIClient, container: Mapping[str, Any]) -> tuple[int, int, dict[str, str]]:
    """Process, user and environment of the server in a container, read inside of it."""
    output = engine.exec_start(engine.exec_create(container["Id"], ["python3", "-c", READ_ENVIRONMENT])["Id"])
    (line,) = output.decode().splitlines()
    pid, user, environment = json.loads(line)
    return pid, user, environment


def test_our_agent_with_a_resources_server_of_another_make(
    engine: docker.APIClient, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planned = plan_benchmark("shopping")
    with (
        caplog.at_level(logging.WARNING),
        ToolUser(one_by_one(SHOPPING), key="sk-policy-key") as endpoint,
        serve_benchmark("shopping", overrides=endpoint.overrides(unused_api_key="sk-of-nobody")) as registry_server,
    ):
        containers = containers_of(engine, session_of(registry_server.port))
        rewards = asyncio.run(rewards_of(planned, registry_server))
        _, user, environment = environment_of(engine, containers[TILL])
        logs = engine.logs(containers[TILL]["Id"]).decode()
    # what one task rang up is in no other's sum: each had its own cookies, through every call
    assert rewards == {"breakfast": [1.0] * 3, "evening": [0.0] * 3}
    assert "'-e nemo-gym[dev] @ ../../' is left out" in caplog.text
    assert "requirements.txt has no hashes" in caplog.text

    config = yaml.safe_load(environment["NEMO_GYM_CONFIG_DICT"])
    assert environment["NEMO_GYM_CONFIG_PATH"] == TILL
    assert config == {
        "dry_run": False,
        "policy_model_name": "scripted",
        "head_server": {"host": "registry", "port": 8000},
        TILL: {
            "resources_servers": {
                "till": {
                    "entrypoint": "app.py",
                    "domain": "agent",
                    "description": "Rings up what a customer buys; the sum on the till is compared.",
                    "cookie_secret": "till-cookie-secret",
                    "host": "0.0.0.0",
                    "port": 8000,
                }
            }
        },
    }
    assert user == 10001
    # none of it stands in what the engine knows and shows
    inspected = json.dumps(engine_view(containers[TILL]))
    for hidden in ("NEMO_GYM_CONFIG_DICT=", "till-cookie-secret", "sk-policy-key", "sk-of-nobody"):
        assert hidden not in inspected
        assert hidden not in logs
    host_config = containers[TILL]["HostConfig"]
    assert (host_config["ReadonlyRootfs"], host_config["CapDrop"], host_config["Init"]) == (True, ["ALL"], True)


def engine_view(container: Mapping[str, Any]) -> dict[str, Any]:
    """What inspect shows of a container: its configuration above all, the command with it."""
    return {key: container[key] for key in ("Config", "HostConfig", "Args", "Path", "State", "NetworkSettings")}


def test_on_the_internal_network_it_is_asked_through_the_registry(engine: docker.APIClient, elsewhere: Path) -> None:
    planned = plan_benchmark("shopping")
    inside = {"resources_servers": {"till": {"container": {"network": "internal"}}}}
    with (
        ToolUser(one_by_one(SHOPPING)) as endpoint,
        serve_benchmark("shopping", overrides=endpoint.overrides(**{TILL: inside})) as registry_server,
    ):
        container = containers_of(engine, session_of(registry_server.port))[TILL]
        rewards = asyncio.run(rewards_of(planned, registry_server))
    assert not any(container["NetworkSettings"]["Ports"].values())
    assert rewards == {"breakfast": [1.0] * 3, "evening": [0.0] * 3}


def test_an_agent_and_a_relay_of_another_make_with_our_servers(
    engine: docker.APIClient, elsewhere: Path, tmp_path: Path
) -> None:
    planned = plan_benchmark("shopping/counting")
    row_file = tmp_path / "row.json"
    row_file.write_text(json.dumps(planned.rows[0]), encoding="utf-8")
    with (
        ToolUser(one_by_one(COUNTING)) as endpoint,
        serve_benchmark("shopping/counting", overrides=endpoint.overrides()) as registry_server,
    ):
        url = f"http://127.0.0.1:{registry_server.port}"
        containers = containers_of(engine, session_of(registry_server.port))
        rewards = asyncio.run(rewards_of(planned, registry_server))
        instances = {entry["name"]: entry for entry in get(registry_server.port, "/server_instances")}
        by_a_client = [sys.executable, str(ELSEWHERE / "client.py"), url, "caller", str(row_file)]
        client = subprocess.run(by_a_client, capture_output=True, text=True, check=True, timeout=60)
        relayed = post(instances["relay"]["url"] + "/run", planned.rows[1])
        _, _, environment = environment_of(engine, containers["caller"])
        grace_s = stop_and_time(engine, containers["relay"]["Id"])
    assert rewards == {"up": [1.0] * 3, "down": [1.0] * 3}
    assert client.stdout == "1.0\n"
    assert relayed["reward"] == 1.0
    assert instances["relay"]["server_type"] == "environment_servers"
    called = yaml.safe_load(environment["NEMO_GYM_CONFIG_DICT"])
    assert called["counter"] == {
        "resources_servers": {"counter": {"entrypoint": "app.py", "host": "counter", "port": 8000}}
    }
    assert called["policy_model"]["responses_api_models"]["openai_model"] == {
        "entrypoint": "app.py",
        "host": "policy_model",
        "port": 8000,
    }
    assert grace_s < 3  # SIGTERM reached the server itself


def post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def stop_and_time(engine: docker.APIClient, container_id: str) -> float:
    """Seconds that a container takes to end when it is asked to."""
    began = time.monotonic()
    engine.stop(container_id, timeout=10)
    return time.monotonic() - began


def make_folder(root: Path, files: Mapping[str, str]) -> None:
    """Write an image folder for the till's config in place of the till's own."""
    folder = root / "images" / "resources_servers" / "till"
    for name in ("app.py", "prices.py", "requirements.txt"):
        (folder / name).unlink()
    for name, content in files.items():
        (folder / name).write_text(textwrap.dedent(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(
            "import os, sys\nprint('no till today', len(os.environ['NEMO_GYM_CONFIG_DICT']) > 9)\nsys.exit(3)\n",
            ["exited with code 3 before it was ready", "no till today True"],
            id="exits",
        ),
        pytest.param(
            "import starlette\n",
            [
                "exited with code 1 before it was ready",
                "Likely cause: a distribution is missing in the image.",
                "Add it to the requirements.txt in the server's image folder.",
            ],
            id="package not listed",
        ),
        pytest.param(
            "from nemo_gym.base_resources_server import SimpleResourcesServer\n",
            ["Likely cause: it needs another nemo_gym than the one in the base image.", "nemo-gym==VERSION"],
            id="other nemo_gym",
        ),
    ],
)
def test_one_that_cannot_start_is_told_with_its_log(elsewhere: Path, source: str, said: list[str]) -> None:
    make_folder(elsewhere, {"app.py": source})
    with (
        ScriptedEndpoint(lambda prompt: "") as endpoint,
        pytest.raises(ConfigError) as caught,
        serve_benchmark("shopping", overrides=endpoint.overrides()),
    ):
        pass
    for part in (f"The resources server {TILL!r}", *said):
        assert part in str(caught.value)


def test_one_that_reads_stdin_by_mistake_is_told_how_it_is_served(elsewhere: Path) -> None:
    """Served as one of ours it starts without its variables."""
    stdin = {TILL: {"resources_servers": {"till": {"container": {"config_from": "stdin"}}}}}
    with (
        ScriptedEndpoint(lambda prompt: "") as endpoint,
        pytest.raises(ConfigError, match=r"Set `container: \{config_from: environment\}` in its config\."),
        serve_benchmark("shopping", overrides=endpoint.overrides(**stdin)),
    ):
        pass


def test_a_config_too_large_for_a_variable_is_refused_before_anything_starts(
    engine: docker.APIClient, elsewhere: Path
) -> None:
    large = {TILL: {"resources_servers": {"till": {"catalogue": "x" * 140_000}}}}
    before = {container["Id"] for container in engine.containers(all=True)}
    with (
        ScriptedEndpoint(lambda prompt: "") as endpoint,
        pytest.raises(ConfigError, match=r"of server 'shopping_till' has 140\d\d\d bytes.*setting is 'catalogue'"),
        serve_benchmark("shopping", overrides=endpoint.overrides(**large)),
    ):
        pass
    assert {container["Id"] for container in engine.containers(all=True)} == before


def test_a_config_that_just_fits_arrives_whole(engine: docker.APIClient, elsewhere: Path) -> None:
    catalogue = "é" * 60_000  # two bytes each
    large = {TILL: {"resources_servers": {"till": {"catalogue": catalogue}}}}
    with (
        ScriptedEndpoint(lambda prompt: "") as endpoint,
        serve_benchmark("shopping", overrides=endpoint.overrides(**large)) as registry_server,
    ):
        container = containers_of(engine, session_of(registry_server.port))[TILL]
        _, _, environment = environment_of(engine, container)
    config = yaml.safe_load(environment["NEMO_GYM_CONFIG_DICT"])
    assert config[TILL]["resources_servers"]["till"]["catalogue"] == catalogue


PLAIN_DOCKERFILE = """\
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
WORKDIR /srv
COPY . .
ENV HOME=/root
ENTRYPOINT ["python3", "-u"]
CMD ["serve/main.py"]
"""

PLAIN_SERVER = """\
import http.server, json, os, pathlib, signal, sys

CONFIG = json.loads(os.environ["NEMO_GYM_CONFIG_DICT"])
SETTINGS = CONFIG[os.environ["NEMO_GYM_CONFIG_PATH"]]["resources_servers"]["till"]
pathlib.Path.home().joinpath("mine").write_text("written")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path not in ("/seed_session", "/verify"):
            return self.send_error(404)
        body = json.dumps({**row, "reward": 0.25, "user": os.getuid(), "home": os.environ["HOME"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
http.server.ThreadingHTTPServer((SETTINGS["host"], SETTINGS["port"]), Handler).serve_forever()
"""


def test_a_dockerfile_written_for_its_own_folder_and_then_the_image_alone(
    engine: docker.APIClient, elsewhere: Path
) -> None:
    """It knows nothing of our base image, and would run as root."""
    make_folder(elsewhere, {"Dockerfile": PLAIN_DOCKERFILE})
    folder = elsewhere / "images" / "resources_servers" / "till"
    (folder / "serve").mkdir()
    (folder / "serve" / "main.py").write_text(PLAIN_SERVER, encoding="utf-8")
    planned = plan_benchmark("shopping")

    async def run(registry_server: BaseServerConfig) -> dict[str, Any]:
        async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
            return (await runner.run_task("evening")).results[0]

    def serve(**till: Any) -> tuple[dict[str, Any], str]:
        changed = {TILL: {"resources_servers": {"till": till}}}
        with (
            ScriptedEndpoint(lambda prompt: "") as endpoint,
            serve_benchmark("shopping", overrides=endpoint.overrides(**changed)) as registry_server,
        ):
            container = containers_of(engine, session_of(registry_server.port))[TILL]
            return asyncio.run(run(registry_server)), container["Config"]["Image"]

    reply, image = serve()
    assert (reply["reward"], reply["user"], reply["home"]) == (0.25, 10001, "/tmp")
    (folder / "Dockerfile").unlink()
    reply, _ = serve(image={"reference": image, "pull_policy": "never"}, container={"user": 4711})
    assert (reply["reward"], reply["user"], reply["home"]) == (0.25, 4711, "/tmp")
