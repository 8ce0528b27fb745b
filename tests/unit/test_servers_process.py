"""Each shipped server as a process of its own, as an image runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from nemo_gym.servers.process import LineReader
from tests.support.server_processes import (
    ROOT,
    bootstrap_line,
    end_of,
    free_port,
    get,
    post,
    wait_for,
    wait_until_ready,
)
from tests.support.server_processes import process as process_of

AGENT = "responses_api_agents/simple_agent"
MCQA = "resources_servers/mcqa"
MODEL = "responses_api_models/openai_model"
REGISTRY = "registry"

MODEL_SETTINGS = {"openai_base_url": "http://127.0.0.1:9/v1", "openai_api_key": "sk-hidden", "openai_model": "m"}
AGENT_SETTINGS = {
    "resources_server": {"type": "resources_servers", "name": "other"},
    "model_server": {"type": "responses_api_models", "name": "model"},
}
# A server that waits for work costs little: what exceeds this is an import too many.
IDLE_BYTES = 60_000_000
SHIPPED = [(MCQA, {}), (MODEL, MODEL_SETTINGS), (AGENT, AGENT_SETTINGS), (REGISTRY, {})]


def process(folder: str, first_input: bytes | None) -> Any:
    return process_of(ROOT / "images" / folder / "app.py", first_input)


@pytest.mark.parametrize(("folder", "settings"), SHIPPED)
def test_it_answers_with_its_name_and_ends_in_order(folder: str, settings: dict[str, Any]) -> None:
    port = free_port()
    with process(folder, bootstrap_line(folder, port, settings, awaited=["other"])) as server:
        assert get(port, "/") == (200, {"status": "ok", "server": "mine", "session_id": "s1"})
        status, state = get(port, "/ready")
        assert psutil.Process(server.pid).memory_info().rss < IDLE_BYTES
        asked = time.monotonic()
        server.send_signal(signal.SIGTERM)
        code, log = end_of(server)
        assert time.monotonic() - asked < 20
    assert (status, state["status"]) == ((200, "ready") if folder in (MCQA, AGENT) else (503, "waiting"))
    assert code == 0
    assert [line["message"].split()[0] for line in log] == ["listening", "stopping"]
    assert {line["server"] for line in log} == {"mine"}


class TestStopping:
    """A request that runs when the stop comes; half of the grace is for requests, half for their connections."""

    PROGRAM = ROOT / "tests" / "support" / "worker_server.py"
    ROW: Final = {"responses_create_params": {"input": "q"}, "response": {"output": []}}

    @pytest.mark.parametrize("num_workers", [1, 2])
    def test_it_is_answered_when_it_ends_within_the_grace(self, tmp_path: Path, num_workers: int) -> None:
        port, begins = free_port(), tmp_path / "begins"
        line = bootstrap_line("resources_servers/stopped", port, {"num_workers": num_workers})
        with process_of(self.PROGRAM, line) as server, ThreadPoolExecutor(1) as caller:
            wait_until_ready(port)
            call = caller.submit(post, port, "/verify", {**self.ROW, "begins": str(begins), "waits_s": 0.5})
            wait_for(begins)
            server.send_signal(signal.SIGTERM)
            assert call.result(20)["reward"] == 1.0
            assert end_of(server)[0] == 0

    def test_it_is_cut_off_when_it_does_not(self, tmp_path: Path) -> None:
        port, begins = free_port(), tmp_path / "begins"
        line = bootstrap_line("resources_servers/stopped", port, {"shutdown_grace_s": 0.4})
        with process_of(self.PROGRAM, line) as server, ThreadPoolExecutor(1) as caller:
            wait_until_ready(port)
            call = caller.submit(post, port, "/verify", {**self.ROW, "begins": str(begins), "waits_s": 30})
            wait_for(begins)
            asked = time.monotonic()
            server.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionResetError):
                call.result(20)
            assert end_of(server)[0] == 0
            assert 0.2 < time.monotonic() - asked < 20


WEATHER = ROOT / "tests" / "support" / "weather_server.py"


def test_a_server_with_a_typed_tool_and_a_verify_takes_less_than_30_lines() -> None:
    assert len(WEATHER.read_text().splitlines()) < 30
    port = free_port()
    says = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sunny today."}]}
    row = {"responses_create_params": {"input": "How is the weather in Oslo?"}}
    with process_of(WEATHER, bootstrap_line("resources_servers/weather", port, {})) as server:
        wait_until_ready(port)
        assert post(port, "/get_weather", {"city": "Oslo"}) == {"city": "Oslo", "forecast": "sunny"}
        with pytest.raises(urllib.error.HTTPError, match="422") as refused:
            post(port, "/get_weather", {"town": "Oslo"})
        with refused.value as error:
            assert json.load(error)["error"]["message"] == "city: Field required"
        assert post(port, "/verify", {**row, "response": {"output": [says]}})["reward"] == 1.0
        assert post(port, "/verify", {**row, "response": {"output": []}})["reward"] == 0.0
        server.send_signal(signal.SIGTERM)
        assert end_of(server)[0] == 0


def wait_until_it_catches(pid: int, number: signal.Signals) -> None:
    deadline = time.monotonic() + 20
    while not catches(pid, number):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{number.name} has its default action")
        time.sleep(0.02)


def catches(pid: int, number: signal.Signals) -> bool:
    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)


def test_it_stops_too_while_it_waits_for_its_configuration() -> None:
    with process(MCQA, b'{"v": 1') as server:
        wait_until_it_catches(server.pid, signal.SIGTERM)
        server.send_signal(signal.SIGTERM)
        assert end_of(server) == (0, [])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"not json\n", "no JSON"),
        (b'{"v": 7}\n', "version"),
        (bootstrap_line(AGENT, 1, {**AGENT_SETTINGS, "max_steps": "many"}), "max_steps"),
        (bootstrap_line(AGENT, 1, {}), "resources_server: Field required"),
    ],
)
def test_what_it_cannot_run_with_is_one_log_line_and_exit_code_1(line: bytes, says: str) -> None:
    with process(AGENT, line) as server:
        code, log = end_of(server)
    assert code == 1
    assert [entry["level"] for entry in log] == ["error"]
    assert says in log[0]["message"]


def test_no_input_at_all_is_said_so() -> None:
    with process(MCQA, None) as server:
        code, log = end_of(server)
    assert (code, "end of input" in log[0]["message"]) == (1, True)


def test_a_port_that_is_taken_is_said_so() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with process(MCQA, bootstrap_line(MCQA, port, {})) as server:
            code, log = end_of(server)
    assert code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in log[-1]["message"]


def test_the_registry_goes_on_after_its_input_has_ended() -> None:
    port = free_port()
    with process(REGISTRY, bootstrap_line(REGISTRY, port, {}, awaited=["a"])) as server:
        assert server.stdin is not None
        assert get(port, "/ready") == (503, {"status": "waiting", "awaited": ["a"]})
        view = {"type": "host_view", "config_yaml": "a: 1", "server_instances": []}
        # One message in two writes, and a second one behind it.
        line = json.dumps(view).encode() + b"\n" + b'{"type": "server_died", "name": "a", "exit_code": 1}\n'
        server.stdin.write(line[:9])
        server.stdin.flush()
        time.sleep(0.05)
        server.stdin.write(line[9:])
        server.stdin.close()
        server.stdin = None
        deadline = time.monotonic() + 10
        while get(port, "/ready")[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert get(port, "/global_config_dict_yaml") == (200, "a: 1")
        (instance,) = get(port, "/server_instances")[1]
        assert (instance["name"], instance["status"], instance["exit_code"]) == ("a", "dead", 1)
        server.send_signal(signal.SIGTERM)
        assert end_of(server)[0] == 0


@pytest.mark.parametrize("folder", [folder for folder, _ in SHIPPED])
def test_it_imports_no_more_than_the_image_holds(folder: str) -> None:
    """aiohttp, pydantic, orjson and what they need; of this package, the server part and the errors."""
    program = "import sys, runpy; runpy.run_path('app.py', run_name='app'); print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "images" / folder,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = done.stdout.split()
    ours = {name for name in modules if name.startswith("nemo_gym.")}
    assert {name.split(".")[1] for name in ours} == {"errors", "secret_keys", "servers"}
    heavy = {"docker", "omegaconf", "rich", "tenacity", "yaml", "requests", "statistics", "pydantic.v1", "xllamacpp"}
    assert not heavy & set(modules)


def test_lines_come_whole_and_the_rest_is_kept() -> None:
    reader, writer = os.pipe()
    lines = LineReader(reader)
    os.write(writer, b"one\ntw")
    assert lines.read_line() == b"one"
    os.write(writer, b"o\n\nthree")
    os.close(writer)
    assert [lines.read_line() for _ in range(5)] == [b"two", b"", b"three", None, None]
    os.close(reader)
