"""Every way a start can fail on purpose: a ``ConfigError`` that says what to do, and nothing left."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from nemo_gym.config.process_config import get_process_config
from nemo_gym.config.sources import install_root
from nemo_gym.containers.labels import SESSION
from nemo_gym.environment import PlannedBenchmark, serve_benchmark
from nemo_gym.errors import ConfigError, EngineUnavailableError, ImageError, ServerStartError
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.truthful import always_right


@pytest.fixture
def endpoint(planned: PlannedBenchmark) -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        yield endpoint


def serve_in_vain(benchmark: str = "truthfulqa_mc1", **arguments: object) -> str:
    """The message of the ``ConfigError`` that serving ends in; the process's configuration is as before."""
    with pytest.raises(ConfigError) as failed, serve_benchmark(benchmark, **arguments):  # type: ignore[arg-type]
        pytest.fail("served")
    assert get_process_config() is None
    return str(failed.value)


def test_unknown_benchmark_names_the_nearest() -> None:
    assert "truthfulqa_mc1" in serve_in_vain("truthfulqa_mcl")


def test_unknown_model_type_names_the_nearest(endpoint: ScriptedEndpoint) -> None:
    message = serve_in_vain(model_type="openai_modle", overrides=endpoint.overrides())
    assert "openai_model" in message


def test_dotted_override_names_the_nested_spelling() -> None:
    message = serve_in_vain(overrides={"policy_model.x": 1})
    assert "policy_model.x" in message
    assert "{" in message


def test_missing_policy_key_is_named(endpoint: ScriptedEndpoint) -> None:
    overrides = endpoint.overrides()
    del overrides["policy_api_key"]
    assert "policy_api_key" in serve_in_vain(overrides=overrides)


def test_port_held_by_a_process_is_refused_before_anything_starts(endpoint: ScriptedEndpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        message = serve_in_vain(overrides=endpoint.overrides(), registry_port=port)
    assert f"registry_port {port} is in use" in message
    assert f"pid {os.getpid()}" in message


def test_port_held_by_another_session_is_named(endpoint: ScriptedEndpoint, free_port: int) -> None:
    program = (
        "import sys, time; from nemo_gym.environment import serve_benchmark\n"
        f"with serve_benchmark('truthfulqa_mc1', overrides={endpoint.overrides()!r}, registry_port={free_port}):\n"
        "    print('serving', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "serving\n"
        message = serve_in_vain(overrides=endpoint.overrides(), registry_port=free_port)
        assert f"registry_port {free_port} is in use by session" in message
        assert f"pid {other.pid}" in message
        other.stdin.close()
        assert other.wait(timeout=60) == 0


def test_port_out_of_range(endpoint: ScriptedEndpoint) -> None:
    assert "1 to 65535" in serve_in_vain(overrides=endpoint.overrides(), registry_port=70000)


def test_engine_that_does_not_answer(
    endpoint: ScriptedEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    with (
        pytest.raises(EngineUnavailableError, match="DOCKER_HOST"),
        serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()),
    ):
        pass


def test_endpoint_that_refuses_connections(free_port: int) -> None:
    overrides = {
        "policy_base_url": f"http://127.0.0.1:{free_port}/v1",
        "policy_api_key": "sk-unused",
        "policy_model_name": "none",
        "model_endpoint_readiness_timeout_seconds": 1,
    }
    message = serve_in_vain(overrides=overrides)
    assert f"nothing listens on 127.0.0.1:{free_port} on this machine" in message
    assert "Check policy_base_url in the config or overrides." in message
    assert "sk-unused" not in message


def test_endpoint_name_that_does_not_resolve_fails_at_once() -> None:
    overrides = {
        "policy_base_url": "http://no-such-host.invalid/v1",
        "policy_api_key": "sk-unused",
        "policy_model_name": "none",
        "model_endpoint_readiness_timeout_seconds": 600,
    }
    message = serve_in_vain(overrides=overrides)
    assert "Check policy_base_url in the config or overrides." in message
    assert "no-such-host.invalid" in message


def test_wrong_key_fails_at_once_and_names_policy_api_key(planned: PlannedBenchmark) -> None:
    with ScriptedEndpoint(always_right(planned), key="sk-right") as endpoint:
        overrides = endpoint.overrides(model_endpoint_readiness_timeout_seconds=600)
        message = serve_in_vain(overrides={**overrides, "policy_api_key": "sk-wrong"})
    assert "Check policy_api_key in the config or overrides." in message
    assert "401" in message
    assert "sk-wrong" not in message


JUDGE = {
    "judge": {
        "responses_api_models": {
            "openai_model": {
                "entrypoint": "app.py",
                "openai_base_url": "${judge_base_url}",
                "openai_api_key": "${judge_api_key}",
                "openai_model": "judge",
            }
        }
    }
}


def test_a_judge_that_is_not_there_is_told_from_the_policy_model(endpoint: ScriptedEndpoint, free_port: int) -> None:
    overrides = endpoint.overrides(
        **JUDGE,
        judge_base_url=f"http://127.0.0.1:{free_port}/v1",
        judge_api_key=endpoint.overrides()["policy_api_key"],
        model_endpoint_readiness_timeout_seconds=1,
    )
    message = serve_in_vain(overrides=overrides)
    assert f"nothing listens on 127.0.0.1:{free_port} on this machine" in message
    assert "inside the container of 'judge'. Check judge_base_url in the config or overrides." in message
    assert "policy" not in message


def test_a_judge_that_refuses_its_key_names_it(planned: PlannedBenchmark, endpoint: ScriptedEndpoint) -> None:
    with ScriptedEndpoint(always_right(planned), key="sk-right") as strict:
        overrides = endpoint.overrides(**JUDGE, judge_base_url=strict.url, judge_api_key="sk-wrong")
        message = serve_in_vain(overrides=overrides)
    assert "HTTP 401" in message
    assert "Check judge_api_key in the config or overrides." in message
    assert "sk-wrong" not in message


def test_a_judge_whose_address_stands_in_its_own_entry_names_the_way_to_it(
    endpoint: ScriptedEndpoint, free_port: int
) -> None:
    judge = copy.deepcopy(JUDGE)
    judge["judge"]["responses_api_models"]["openai_model"]["openai_base_url"] = f"http://localhost:{free_port}/v1"
    overrides = endpoint.overrides(**judge, judge_api_key="k", model_endpoint_readiness_timeout_seconds=1)
    message = serve_in_vain(overrides=overrides)
    assert f"nothing listens on localhost:{free_port} on this machine" in message
    assert "Check judge.responses_api_models.openai_model.openai_base_url in the config" in message


def test_https_on_loopback_fails_at_once_and_says_why(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*request.split(), "-out", certificate, "-keyout", key], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        shaking_hands = threading.Thread(target=greet_until_closed, args=(listener, context), daemon=True)
        shaking_hands.start()
        overrides = endpoint.overrides(
            policy_base_url=f"https://localhost:{port}/v1", model_endpoint_readiness_timeout_seconds=600
        )
        message = serve_in_vain(overrides=overrides)
        listener.shutdown(socket.SHUT_RDWR)
        shaking_hands.join(10)
    assert f"the certificate of https://localhost:{port}/v1/models is not accepted" in message
    assert "let the endpoint speak plain http:// there" in message
    assert "Check policy_base_url" in message


def greet_until_closed(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Speak TLS with whoever comes."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1000)


@pytest.fixture
def search_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A search root of the test's own, looked at before the install root."""
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    return tmp_path


def copy_server(root: Path, name: str) -> Path:
    """mcqa under another name in ``root``, and a benchmark of that name that uses it."""
    folder = root / "images" / "resources_servers" / name
    shutil.copytree(install_root() / "images/resources_servers/mcqa", folder)
    benchmark = root / "benchmarks" / name
    benchmark.mkdir(parents=True)
    (benchmark / "config.yaml").write_text(
        f"""
config_paths: [benchmarks/truthfulqa_mc1/config.yaml]
truthfulqa_mc1_resources_server:
  _delete_key: resources_servers
{name}_server:
  resources_servers:
    {name}: {{entrypoint: app.py, domain: knowledge}}
truthfulqa_mc1_simple_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: {name}_server}}
""",
        encoding="utf-8",
    )
    return folder


def test_server_that_raises_at_import_ends_the_wait_and_quotes_its_log(
    search_root: Path, endpoint: ScriptedEndpoint
) -> None:
    folder = copy_server(search_root, "broken")
    (folder / "app.py").write_text("raise RuntimeError('the sky is falling')\n", encoding="utf-8")
    with (
        pytest.raises(ServerStartError) as failed,
        serve_benchmark("broken", overrides=endpoint.overrides()),
    ):
        pass
    assert failed.value.server == "broken_server"
    assert failed.value.exit_code == 1
    assert not failed.value.oom_killed
    assert "RuntimeError: the sky is falling" in str(failed.value)
    assert failed.value.phase == "ready"


def test_server_over_its_memory_limit_is_told_apart(search_root: Path, endpoint: ScriptedEndpoint) -> None:
    folder = copy_server(search_root, "greedy")
    (folder / "app.py").write_text("held = b'x' * 600_000_000\n", encoding="utf-8")
    overrides = endpoint.overrides(greedy_server={"resources_servers": {"greedy": {"container": {"memory": "64m"}}}})
    with pytest.raises(ServerStartError) as failed, serve_benchmark("greedy", overrides=overrides):
        pass
    assert failed.value.server == "greedy_server"
    assert failed.value.oom_killed
    assert "container.memory" in str(failed.value)


def test_image_that_cannot_be_built_quotes_the_end_of_its_log(
    engine: docker.APIClient, search_root: Path, endpoint: ScriptedEndpoint
) -> None:
    folder = copy_server(search_root, "unbuildable")
    (folder / "Dockerfile").write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo about to fail && exit 7\n", encoding="utf-8"
    )
    with (
        pytest.raises(ImageError, match="about to fail") as failed,
        serve_benchmark("unbuildable", overrides=endpoint.overrides()),
    ):
        pass
    assert "code: 7" in str(failed.value)
    assert not engine.images("nemo-gym/resources-servers/unbuildable")


def serving_process(benchmark: str, overrides: dict[str, object]) -> subprocess.Popen[str]:
    """A process that serves until it is told to end, in a process group of its own."""
    program = (
        "import logging, sys\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "from nemo_gym.environment import serve_benchmark\n"
        f"with serve_benchmark({benchmark!r}, overrides={overrides!r}):\n"
        "    print('serving', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"the process ended before it said {text!r}")


@pytest.mark.parametrize("phase", ["building", "starting", "serving"])
def test_ctrl_c_leaves_nothing(
    engine: docker.APIClient, search_root: Path, endpoint: ScriptedEndpoint, phase: str
) -> None:
    name = "truthfulqa_mc1"
    if phase == "building":
        name = "slow"
        (copy_server(search_root, name) / "Dockerfile").write_text(
            "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN sleep 300\n", encoding="utf-8"
        )
    with serving_process(name, dict(endpoint.overrides())) as process:
        read_until(process, phase)
        if phase == "building":
            wait_until_a_build_runs(engine)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not engine.containers(all=True, filters={"label": SESSION})


@pytest.mark.parametrize("phase", ["starting", "serving"])
def test_kill_leaves_nothing(engine: docker.APIClient, endpoint: ScriptedEndpoint, phase: str) -> None:
    """SIGKILL of the whole process group: the keeper removes the session. (The leak check waits for it.)"""
    with serving_process("truthfulqa_mc1", dict(endpoint.overrides())) as process:
        read_until(process, phase)
        if phase == "starting":
            time.sleep(0.3)  # some of the containers are there, none is ready
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_session_of_a_dead_owner_is_swept_at_the_next_start(
    engine: docker.APIClient, endpoint: ScriptedEndpoint
) -> None:
    """Owner and keeper killed at once: what they leave goes when the next session starts."""
    with serving_process("truthfulqa_mc1", dict(endpoint.overrides())) as process:
        read_until(process, "serving")
        for keeper in children_named("nemo_gym.containers.keeper", process.pid):
            os.kill(keeper, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=60)
    orphans = engine.containers(filters={"label": SESSION})
    assert len(orphans) == 4
    with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()):
        alive = {c["Id"] for c in engine.containers(all=True, filters={"label": SESSION})}
        assert len(alive) == 4
        assert not alive & {orphan["Id"] for orphan in orphans}


def children_named(module: str, owner: int) -> list[int]:
    """The keepers of one owner: processes that run ``module`` with the owner's pid as their last argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if module in words and str(owner) in words:
            found.append(int(entry.name))
    assert found
    return found


def wait_until_a_build_runs(engine: docker.APIClient) -> None:
    deadline = time.monotonic() + 60
    while not any("sleep 300" in container["Command"] for container in engine.containers()):
        assert time.monotonic() < deadline, "no build container was seen"
        time.sleep(0.05)
