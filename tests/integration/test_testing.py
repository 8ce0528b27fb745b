"""nemo_gym.testing with real containers: the scripted endpoint, an engine over TCP, and test runs that end badly."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import docker
import pytest
from testcontainers.core.config import testcontainers_config

from nemo_gym.config.sources import install_root
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.images import ensure_base, image_files
from nemo_gym.containers.labels import SESSION
from nemo_gym.errors import ConfigError, NemoGymError
from nemo_gym.testing import BenchmarkContainers, ModelEndpointContainer, Reply, Rule, Script, ServedBenchmark, ToolCall
from tests.support.namespaces import other_machine
from tests.support.second_engine import copy_images, second_engine

RIGHT = Script(
    rules=(
        Rule(contains="Add 26", reply=Reply(tool_calls=(ToolCall(name="increment", arguments={"by": 26}),))),
        Rule(contains='"value"', reply=Reply(text="Done.")),
    )
)


@pytest.fixture(autouse=True)
def no_ryuk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    monkeypatch.setattr(testcontainers_config, "_ryuk_disabled", True)  # it has read the variable long ago


def rewards(served: ServedBenchmark) -> list[float]:
    return asyncio.run(served.task_runner().run_task("add-1")).rewards


def ours(engine: docker.APIClient) -> list[dict[str, Any]]:
    return list(engine.containers(all=True, filters={"label": SESSION}))


def test_the_endpoint_is_hardened_and_only_on_loopback(engine: docker.APIClient) -> None:
    endpoint = ModelEndpointContainer("B")
    with endpoint:
        found = engine.inspect_container(endpoint.get_container_id())
        host = found["HostConfig"]
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["NetworkMode"]) == (True, ["ALL"], "bridge")
        assert (host["SecurityOpt"], host["PidsLimit"]) == (["no-new-privileges:true"], 64)
        assert (host["Memory"], host["MemorySwap"]) == (512 << 20, 512 << 20)
        assert host["Tmpfs"] == {"/tmp": "rw,nosuid,nodev,size=268435456,mode=1777"}
        assert found["Config"]["User"] == "gym"
        assert [bound["HostIp"] for bound in found["NetworkSettings"]["Ports"]["8000/tcp"]] == ["127.0.0.1"]
        assert endpoint.url == f"http://{endpoint.get_container_host_ip()}:{endpoint.get_exposed_port(8000)}/v1"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{endpoint.url}/models", timeout=10)
        with pytest.raises(ConfigError, match="started already"):
            endpoint.start()
        with pytest.raises(NemoGymError, match="HTTP 404"):
            endpoint._call("GET", "/nothing")
        assert endpoint.asked() == []
    endpoint.stop()
    assert ours(engine) == []


def test_with_ryuk_on_and_its_image_not_to_be_had_it_says_so(
    engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testcontainers_config, "_ryuk_disabled", False)
    monkeypatch.setattr(testcontainers_config, "ryuk_image", "127.0.0.1:9/none/ryuk:1")
    with pytest.raises(ConfigError, match=r"Ryuk cannot be started .* set TESTCONTAINERS_RYUK_DISABLED=true"):
        ModelEndpointContainer().start()
    assert ours(engine) == []


RYUK = """
import socket
server = socket.create_server(("0.0.0.0", 8080))
print("Started!", flush=True)
while True:
    peer = server.accept()[0]
    print(peer.recv(1000).decode(), flush=True)
    peers = [peer]
"""
WITH_RYUK = """
import json, time
from testcontainers.core.container import Reaper
from nemo_gym.testing import ModelEndpointContainer

with ModelEndpointContainer() as endpoint:
    told = ""
    while "label=" not in told:
        time.sleep(0.05)
        told = Reaper._container.get_wrapped_container().logs().decode()
    labels = endpoint.get_wrapped_container().labels
    print(json.dumps([told.split("label=")[1].strip(), labels]))
"""


def test_with_ryuk_on_the_endpoint_is_one_of_those_that_it_is_told_to_remove(
    engine: docker.APIClient, our_engine: DockerEngine
) -> None:
    """On a stand-in that only listens: what testcontainers tells Ryuk, and that our start and stop go with it."""
    base, _ = ensure_base(our_engine, image_files(install_root(), os.environ))
    command = json.dumps(["python", "-c", RYUK])
    dockerfile = io.BytesIO(f"FROM {base}\nCMD {command}\n".encode())
    built = list(engine.build(fileobj=dockerfile, tag="ryuk-stand-in:1", rm=True, decode=True))
    assert "error" not in built[-1], built[-1]
    try:
        environ = {"TESTCONTAINERS_RYUK_DISABLED": "false", "RYUK_CONTAINER_IMAGE": "ryuk-stand-in:1"}
        done = subprocess.run(
            [sys.executable, "-c", WITH_RYUK],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    finally:
        engine.remove_image("ryuk-stand-in:1")
    told, labels = json.loads(done.stdout)
    key, _, value = told.partition("=")
    assert key == "org.testcontainers.session-id"
    assert labels[key] == value


def test_on_an_engine_over_tcp(engine: docker.APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint is published there too, and both this process and the containers over there reach it."""
    with ModelEndpointContainer() as endpoint, BenchmarkContainers("counter").with_overrides(endpoint.overrides()):
        images = [container["Image"] for container in ours(engine)]
    needed = list(dict.fromkeys(images))
    assert len(needed) == 5
    bases = {engine.inspect_image(image)["Config"]["Labels"]["nemo-gym.base-image"] for image in needed}
    base = [tag for image in bases for tag in engine.inspect_image(image)["RepoTags"]]
    python = os.environ.get("NEMO_GYM_PYTHON_IMAGE") or next(
        tag for tag in ("python:3.13-slim-trixie", "nemo-gym/python:3.13-slim-trixie") if engine.images(name=tag)
    )
    with other_machine() as machine, second_engine(machine, str(engine.api_version)) as far:
        copy_images(engine, far, [python, *base, *needed])
        monkeypatch.setenv("DOCKER_HOST", far.base_url.replace("http://", "tcp://"))
        monkeypatch.setenv("NEMO_GYM_TOKEN", "7e57-0f-70ken")
        before = ours(engine)
        with (
            ModelEndpointContainer(RIGHT) as endpoint,
            BenchmarkContainers("counter", overrides=endpoint.overrides())
            .with_override("bind_address", "0.0.0.0") as served,
        ):  # fmt: skip
            assert endpoint.url.startswith(f"http://{machine.far}:")
            assert served.registry_server.host == machine.far
            assert rewards(served) == [1.0]
            assert len(endpoint.asked()) == 2
            assert len(ours(far)) == 5
            assert ours(engine) == before
        assert ours(far) == []


PROJECT = """
import os, signal, sys, time
import pytest
from nemo_gym.testing import ModelEndpointContainer

@pytest.fixture(scope="session")
def benchmark_overrides():
    with ModelEndpointContainer() as endpoint:
        open("starting", "w").close()
        yield endpoint.overrides()

@pytest.mark.served_benchmark("counter")
def test_it(served_benchmark):
    open("serving", "w").close()
    {end}
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("phase", "end", "options", "said"),
    [
        pytest.param("starting", "time.sleep(60)", (), "KeyboardInterrupt", id="interrupted-at-its-start"),
        pytest.param("serving", "time.sleep(60)", (), "KeyboardInterrupt", id="interrupted"),
        pytest.param("serving", KILLED, (), "", id="killed"),
        pytest.param("serving", KILLED, ("-n", "1", "--maxfail", "1"), "crashed", id="worker-killed"),
    ],
)
def test_nothing_is_left_of_a_run_that_ends_badly(
    engine: docker.APIClient, tmp_path: Path, phase: str, end: str, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "test_it.py").write_text(PROJECT.format(end=end))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "nemo_gym.testing.plugin", "-p", "no:cacheprovider", *options]
    command += ["--basetemp", str(tmp_path / "temporary")]
    command[3:3] = ["-p", "xdist.plugin", "-p", "pytest_asyncio.plugin"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environ
        )
        try:
            while process.poll() is None and not (tmp_path / phase).exists():
                with_timeout(process, 0.1)
            if end != KILLED:
                os.killpg(process.pid, signal.SIGINT)
            assert process.wait(120) != 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    shown = (tmp_path / "log").read_text()
    assert (tmp_path / phase).exists(), shown
    assert said in shown
    # nothing_is_left, which ends every test here, sees the rest


def with_timeout(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for the process, but not longer than this."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return
