"""A server of several processes: they share a port, start and end together, and leave none behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from images.resources_servers.counter.app import Counter
from images.responses_api_models.llama_cpp_model.app import LlamaCppModel
from images.responses_api_models.openai_model.app import OpenAIModel
from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import Server
from nemo_gym.servers.messages import VerifyRequest
from nemo_gym.servers.registry import Registry
from nemo_gym.servers.resources import ResourcesServer
from nemo_gym.servers.testing import bootstrap_for
from nemo_gym.servers.workers import bind_all
from tests.support.server_processes import (
    ROOT,
    bootstrap_line,
    end_of,
    free_port,
    get,
    post,
    process,
    wait_for,
    wait_until_ready,
)

PROGRAM = ROOT / "tests" / "support" / "worker_server.py"
ROW = {"responses_create_params": {"input": "q"}, "response": {"output": []}}
ENDPOINT = {"openai_base_url": "http://127.0.0.1:9/v1", "openai_model": "m"}


@contextmanager
def workers(port: int, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    line = bootstrap_line("resources_servers/workers", port, {"num_workers": 2, **settings})
    with process(PROGRAM, line) as parent:
        yield parent


def children_of(parent: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(parent.pid).children()


def verify(port: int, **fields: Any) -> dict[str, Any]:
    """By a connection of its own, so that either worker may get it."""
    reply: dict[str, Any] = post(port, "/ng-rollout/r1/verify", {**ROW, **fields})
    return reply


def assert_all_end(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


class TestRunning:
    def test_they_answer_on_one_port_say_which_of_them_does_and_end_in_order(self) -> None:
        port, seen = free_port(), dict[int, int]()
        with workers(port) as parent:
            wait_until_ready(port)
            family = children_of(parent)
            deadline = time.monotonic() + 20
            while len(seen) < 2 and time.monotonic() < deadline:
                reply = verify(port)
                seen[reply["worker"]] = reply["pid"]
            parent.send_signal(signal.SIGTERM)
            code, log = end_of(parent)
        assert seen == {0: family[0].pid, 1: family[1].pid}
        assert_all_end(family)
        assert code == 0
        said = [(line["worker"], line["message"].split()[0]) for line in log if "rollout_id" not in line]
        assert sorted(said) == [(0, "listening"), (0, "stopping"), (1, "listening"), (1, "stopping")]
        asked = [line for line in log if "rollout_id" in line]
        assert {line["worker"] for line in asked} == {0, 1}
        assert {(line["server"], line["rollout_id"]) for line in asked} == {("mine", "r1")}

    def test_ready_is_when_all_of_them_have_started(self, tmp_path: Path) -> None:
        port, go = free_port(), tmp_path / "go"
        with workers(port, starts_with=str(go)) as parent:
            assert get(port, "/")[0] == 200
            status, state = get(port, "/ready")
            go.touch()
            wait_until_ready(port)
            parent.send_signal(signal.SIGINT)
            code, _ = end_of(parent)
        assert (status, state["status"]) == (503, "waiting")
        assert state["detail"] == "1 of 2 workers have not started yet"
        assert code == 0

    def test_lines_of_several_do_not_run_into_one_another(self) -> None:
        port, length = free_port(), 100_000  # more than a pipe takes at a time
        with workers(port, num_workers=3) as parent, ThreadPoolExecutor(9) as callers:
            wait_until_ready(port)
            assert parent.stderr is not None
            log: list[bytes] = []
            reading = threading.Thread(target=lambda: log.extend(parent.stderr or ()))
            reading.start()
            replies = list(callers.map(lambda _: verify(port, logs=length), range(30)))
            parent.send_signal(signal.SIGTERM)
            assert parent.wait(20) == 0
            reading.join(20)
        assert {reply["reward"] for reply in replies} == {1.0}
        messages = [json.loads(line)["message"] for line in log]
        assert sum(message == "x" * length for message in messages) == 30


class TestEnding:
    def test_one_that_dies_ends_the_server_and_says_so(self) -> None:
        port = free_port()
        with workers(port) as parent:
            wait_until_ready(port)
            family = children_of(parent)
            family[1].kill()
            code, log = end_of(parent)
        assert_all_end(family)
        assert code == 1
        (error,) = [line for line in log if line["level"] == "error"]
        assert error["message"].startswith(f"worker 1 (process {family[1].pid}) has ended by SIGKILL")
        assert "worker" not in error
        assert [line["worker"] for line in log if line["message"] == "stopping"] == [0]

    def test_one_that_cannot_start_ends_the_server(self) -> None:
        with workers(free_port(), fails=True) as parent:
            code, log = end_of(parent)
        assert code == 1
        own, parents = [line for line in log if line["level"] == "error"]
        assert (own["worker"], own["message"]) == (1, "this worker cannot start")
        assert "has ended with exit code 1" in parents["message"]

    def test_none_outlives_a_parent_that_is_killed_even_while_it_works(self, tmp_path: Path) -> None:
        port, begins = free_port(), tmp_path / "begins"
        with workers(port, shutdown_grace_s=0.3) as parent, ThreadPoolExecutor(1) as caller:
            wait_until_ready(port)
            family = children_of(parent)
            call = caller.submit(verify, port, blocks_s=30, begins=str(begins))
            wait_for(begins)
            parent.kill()
            assert_all_end(family)
            with pytest.raises(ConnectionResetError):
                call.result(20)

    def test_one_that_is_too_busy_to_stop_is_killed_when_the_grace_is_over(self, tmp_path: Path) -> None:
        port, begins = free_port(), tmp_path / "begins"
        with workers(port, shutdown_grace_s=0.3) as parent, ThreadPoolExecutor(1) as caller:
            wait_until_ready(port)
            family = children_of(parent)
            call = caller.submit(verify, port, blocks_s=30, begins=str(begins))
            wait_for(begins)
            asked = time.monotonic()
            parent.send_signal(signal.SIGTERM)
            code, _ = end_of(parent)
            took_s = time.monotonic() - asked
            with pytest.raises(ConnectionResetError):
                call.result(20)
        assert_all_end(family)
        assert code == 0
        assert 0.3 < took_s < 5

    def test_a_port_that_is_taken_is_said_so(self) -> None:
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # a stranger that would share it
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            with workers(port) as parent:
                code, log = end_of(parent)
        assert code == 1
        assert f"cannot listen on 127.0.0.1 port {port}" in log[-1]["message"]


def test_sockets_share_an_address_once_it_is_free() -> None:
    port = free_port()
    sockets = bind_all("127.0.0.1", port, 3)
    try:
        assert {each.getsockname() for each in sockets} == {("127.0.0.1", port)}
    finally:
        for each in sockets:
            each.close()


class Stateless(ResourcesServer):
    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        return {"reward": 1.0, "pid": os.getpid()}


class TestWhoMayHaveThem:
    @pytest.mark.parametrize(
        ("kind", "settings", "because"),
        [
            (
                Counter,
                {},
                r"seed_session, verify, \w+, .* take a Session, whose state is in the memory of one process",
            ),
            (Registry, {}, "standard input"),
            (LlamaCppModel, {}, "the model is in its memory"),
        ],
    )
    def test_one_that_keeps_what_others_would_not_see_is_refused_by_name(
        self, kind: type[Server], settings: dict[str, Any], because: str
    ) -> None:
        kind(bootstrap_for(kind, {**settings, "num_workers": 1})).build_app()
        with pytest.raises(ConfigError, match=f"server tested has num_workers: 2; needed: 1.*{because}"):
            kind(bootstrap_for(kind, {**settings, "num_workers": 2})).build_app()

    def test_a_cap_on_concurrency_needs_one_process_that_counts(self) -> None:
        OpenAIModel(bootstrap_for(OpenAIModel, {**ENDPOINT, "num_workers": 4})).build_app()
        OpenAIModel(bootstrap_for(OpenAIModel, {**ENDPOINT, "num_workers": 1, "max_concurrent_requests": 8}))
        with pytest.raises(ConfigError, match=r"server tested .*max_concurrent_requests is counted by one process"):
            OpenAIModel(bootstrap_for(OpenAIModel, {**ENDPOINT, "num_workers": 4, "max_concurrent_requests": 8}))

    def test_a_number_of_workers_is_at_least_one(self) -> None:
        Stateless(bootstrap_for(Stateless, {"num_workers": None})).build_app()
        with pytest.raises(ConfigError, match="num_workers"):
            Stateless(bootstrap_for(Stateless, {"num_workers": 0}))
