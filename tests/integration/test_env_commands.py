"""``gym env start|status|logs|stop`` for real: what outlives the shell, what ends it, and what each exit code says."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.containers.labels import process_start
from nemo_gym.environment import PlannedBenchmark, TaskResult, TaskRunner, serve_benchmark
from nemo_gym.errors import RolloutFailedError
from tests.support.command import GYM, detached, gym, running, start_command, status_of
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import SESSION, containers_of, get, session_of
from tests.support.truthful import always_right

RESOURCES_SERVER = "truthfulqa_mc1_resources_server"
SERVERS = ["policy_model", RESOURCES_SERVER, "truthfulqa_mc1_simple_agent"]


@pytest.fixture
def endpoint(planned: PlannedBenchmark) -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        yield endpoint


def run_task(planned: PlannedBenchmark, port: int, rollout_id: str | None = None) -> TaskResult:
    async def run() -> TaskResult:
        async with TaskRunner(planned.rows, registry_server=BaseServerConfig(host="127.0.0.1", port=port)) as runner:
            return await runner.run_task(planned.task_ids()[0], rollout_id=rollout_id)

    return asyncio.run(run())


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)


def is_gone(engine: docker.APIClient, session_id: str) -> bool:
    return not engine.containers(all=True, filters={"label": f"{SESSION}={session_id}"})


class TestDetached:
    def test_outlives_the_terminal_it_was_started_in(
        self,
        engine: docker.APIClient,
        planned: PlannedBenchmark,
        endpoint: ScriptedEndpoint,
        free_port: int,
        tmp_path: Path,
    ) -> None:
        """The terminal closes: SIGHUP, then SIGKILL, to everybody in it. The servers, and the relay, go on."""
        controller, terminal = pty.openpty()
        command = start_command(endpoint, free_port, "--detach", "--json")
        with subprocess.Popen(
            [sys.executable, "-c", TERMINAL, *command], stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path
        ) as shell:
            os.close(terminal)
            shown = read_until(controller, "shell goes on")
            os.close(controller)
            assert shell.wait(timeout=10) == -signal.SIGHUP
        with pytest.raises(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        started = json.loads(shown[shown.index("{") : shown.rindex("}") + 1])
        session = started["session_id"]
        assert f"gym env stop {session}" in shown

        assert run_task(planned, free_port).rewards == [1.0]
        found = status_of(session[:6])
        assert (found["session_id"], found["benchmark"], found["detached"]) == (session, "truthfulqa_mc1", True)
        assert found["owner"]["liveness"] == "alive"
        assert found["registry"]["url"] == f"http://127.0.0.1:{free_port}"
        assert [server["name"] for server in found["servers"]] == SERVERS
        assert {server["state"] for server in found["servers"]} == {"running"}
        addresses = {server["name"]: (server["host"], server["port"]) for server in started["servers"]}
        assert {server["name"]: (server["host"], server["port"]) for server in found["servers"]} == addresses

        assert gym("env", "stop", session) == f"stopped {session}\n"
        # at once, not only in the end
        assert is_gone(engine, session)
        assert not engine.networks(filters={"label": f"{SESSION}={session}"})
        assert process_start(found["owner"]["pid"]) is None

    def test_a_sweep_takes_the_one_whose_keeper_was_killed_and_no_other(
        self, engine: docker.APIClient, endpoint: ScriptedEndpoint, free_port: int, tmp_path: Path
    ) -> None:
        with detached(endpoint, free_port, tmp_path) as orphan:
            os.kill(status_of(orphan)["owner"]["pid"], signal.SIGKILL)
            wait_until(lambda: status_of(orphan)["owner"]["liveness"] == "dead", "the owner is seen dead")
            assert len(containers_of(engine, orphan)) == 4
            with detached(endpoint, other_port(free_port), tmp_path) as alive:
                assert is_gone(engine, orphan)
                with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()):
                    assert len(containers_of(engine, alive)) == 4
                assert len(containers_of(engine, alive)) == 4
                gym("env", "stop", alive)

    def test_its_keeper_tells_of_deaths_and_ends_with_the_registry(
        self,
        engine: docker.APIClient,
        planned: PlannedBenchmark,
        endpoint: ScriptedEndpoint,
        free_port: int,
        tmp_path: Path,
    ) -> None:
        with detached(endpoint, free_port, tmp_path) as session:
            engine.kill(containers_of(engine, session)[RESOURCES_SERVER]["Id"])

            def told() -> dict[str, object]:
                return {found["name"]: found for found in get(free_port, "/server_instances")}[RESOURCES_SERVER]

            wait_until(lambda: told()["status"] == "dead", "the registry knows", deadline_s=3)
            assert (told()["exit_code"], told()["oom_killed"]) == (137, False)
            with pytest.raises(RolloutFailedError) as failed:
                run_task(planned, free_port)
            assert failed.value.server == RESOURCES_SERVER
            dead = {server["name"]: server for server in status_of(session)["servers"]}[RESOURCES_SERVER]
            assert (dead["state"], dead["exit_code"], dead["port"]) == ("exited", 137, None)
            assert "exited (137)" in gym("env", "status", session)

            engine.kill(containers_of(engine, session)["registry"]["Id"])
            wait_until(lambda: is_gone(engine, session), "the keeper has removed it")

    def test_a_keeper_that_is_asked_to_end_takes_it_along(
        self, engine: docker.APIClient, endpoint: ScriptedEndpoint, free_port: int, tmp_path: Path
    ) -> None:
        with detached(endpoint, free_port, tmp_path) as session:
            os.kill(status_of(session)["owner"]["pid"], signal.SIGTERM)
            wait_until(lambda: is_gone(engine, session), "the keeper has removed it")

    def test_logs_are_followed_for_one_rollout(self, planned: PlannedBenchmark, free_port: int, tmp_path: Path) -> None:
        with ScriptedEndpoint(always_right(planned)) as endpoint, detached(endpoint, free_port, tmp_path) as session:
            follow = [*GYM, "env", "logs", session, "--follow", "--json"]
            with (
                running([*follow, "--rollout-id", "watched"], tmp_path) as one,
                running([*follow, "--server", "policy_model"], tmp_path) as whole,
            ):
                assert whole.stdout is not None
                assert one.stdout is not None
                assert "listening" in json.loads(whole.stdout.readline())["message"]
                for rollout in ("other", "watched"):
                    assert run_task(planned, free_port, rollout).rewards == [1.0]
                seen: set[str] = set()
                while len(seen) < 3:  # each server tells of its part; a line that never comes ends with the test run
                    line = json.loads(one.stdout.readline())
                    assert line["rollout_id"] == "watched"
                    seen.add(line["server"])
                assert seen == {"policy_model", "truthfulqa_mc1_resources_server", "truthfulqa_mc1_simple_agent"}
                one.send_signal(signal.SIGINT)
                assert one.wait(timeout=10) == 130
                assert {json.loads(rest)["rollout_id"] for rest in one.stdout} <= {"watched"}

                found = gym("env", "logs", session, "--rollout-id", "other", "--json").splitlines()
                assert {json.loads(line)["rollout_id"] for line in found} == {"other"}
                assert gym("env", "logs", session, "--rollout-id", "nobodys") == ""
                times = [line.partition(" ")[0] for line in gym("env", "logs", session).splitlines()]
                assert times == sorted(times)
                last = gym("env", "logs", session, "--server", "registry", "--tail", "1")
                assert "registry info the host view has arrived: 3 servers" in last
                assert "has no server 'nobody'" in gym("env", "logs", session, "--server", "nobody", code=2)

                assert json.loads(gym("env", "stop", session, "--json")) == {"stopped": [session], "left": {}}
                assert whole.wait(timeout=10) == 0  # the log ends with its server
                rollouts = {json.loads(line).get("rollout_id") for line in whole.stdout}
                assert rollouts == {None, "other", "watched"}


# A shell in a terminal of its own, which is its controlling one: what is closed under it.
TERMINAL = """
import fcntl, os, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
subprocess.run(sys.argv[1:], check=True)
print("the shell goes on", flush=True)
os.read(0, 1)
"""


def read_until(descriptor: int, text: str) -> str:
    shown = ""
    while text not in shown:
        shown += os.read(descriptor, 1 << 16).decode()
    return shown


def other_port(port: int) -> int:
    return port + 1 if port < 65535 else port - 1


class TestForeground:
    @pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_a_signal_ends_it(
        self,
        engine: docker.APIClient,
        endpoint: ScriptedEndpoint,
        free_port: int,
        tmp_path: Path,
        sent: signal.Signals,
        code: int,
    ) -> None:
        with running(start_command(endpoint, free_port), tmp_path) as process:
            session = wait_until_serving(process, free_port)
            assert status_of(session)["owner"]["pid"] == process.pid
            os.killpg(process.pid, sent)
            _, said = process.communicate(timeout=60)
        assert process.returncode == code
        assert f"stopped by {sent.name}" in said
        assert is_gone(engine, session)

    def test_it_tells_of_a_server_that_dies_and_ends_with_the_registry(
        self, engine: docker.APIClient, endpoint: ScriptedEndpoint, free_port: int, tmp_path: Path
    ) -> None:
        with running(start_command(endpoint, free_port, "-v"), tmp_path) as process:
            session = wait_until_serving(process, free_port)
            engine.kill(containers_of(engine, session)[RESOURCES_SERVER]["Id"])
            time.sleep(0.5)
            assert process.poll() is None
            engine.kill(containers_of(engine, session)["registry"]["Id"])
            _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert f"server {RESOURCES_SERVER} died (exit code 137)" in said
        assert f"The registry of session {session} has died (exit code 137)" in said
        assert is_gone(engine, session)
        timeline = said[said.index("phase ") :].splitlines()
        for phase in ("images", "network", "create +registry", "start +policy_model", "ready +policy_model"):
            assert any(line.split()[: len(phase.split(" +"))] == phase.split(" +") for line in timeline), phase

    def test_it_ends_when_it_is_stopped_from_elsewhere(
        self, engine: docker.APIClient, endpoint: ScriptedEndpoint, free_port: int, tmp_path: Path
    ) -> None:
        with running(start_command(endpoint, free_port), tmp_path) as process:
            session = wait_until_serving(process, free_port)
            gym("env", "stop", session)
            assert is_gone(engine, session)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert f"Session {session} was stopped from elsewhere" in said

    def test_a_signal_while_a_detached_one_starts_leaves_nothing(
        self, endpoint: ScriptedEndpoint, free_port: int, tmp_path: Path
    ) -> None:
        with running(start_command(endpoint, free_port, "--detach"), tmp_path) as process:
            assert process.stderr is not None
            assert "starting 4 containers" in process.stderr.readline()
            time.sleep(0.5)  # some of the containers are there, none is ready
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode == 143


def wait_until_serving(process: subprocess.Popen[str], port: int) -> str:
    """The session that a foreground start serves, once it says so."""
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("session: "), process.communicate()
    session = session_of(port)
    assert first == f"session: {session}\n"
    return session
