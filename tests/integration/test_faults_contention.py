"""Many sessions on one machine: each gets its own ports, and none is touched by another's start, end or sweep."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from nemo_gym.containers import reaper
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.labels import Owner, session_labels
from nemo_gym.environment import serve_benchmark
from nemo_gym.errors import ConfigError
from tests.support.engine_proxy import EngineProxy, Rule
from tests.support.serving_process import ServingProcess, keepers_of
from tests.support.sessions import SESSION, containers_of, get, session_of
from tests.support.stub_servers import BENCHMARK, MODEL_TYPE, SERVERS, acting, make_stubs


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root"
    make_stubs(folder)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder))
    return folder


@pytest.fixture
def overrides(tmp_path: Path) -> dict[str, Any]:
    return acting(server_stop_grace_seconds=1, results_dir=str(tmp_path / "results"))


def serve(overrides: dict[str, Any], registry_port: int | None = None) -> ServingProcess:
    return ServingProcess(overrides, registry_port=registry_port)


def port_of(process: ServingProcess, timeout_s: float = 60.0) -> int:
    """The registry's port, once it serves."""
    return int(process.wait_for("serving on", timeout_s).split()[-1])


def stop(process: ServingProcess) -> None:
    process.tell("return")
    assert process.wait() == 0, process.errors


def kill_with_keeper(process: ServingProcess) -> None:
    """Leave its session to whoever sweeps next."""
    for keeper in keepers_of(process.pid):
        os.kill(keeper, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def next_ports(engine: docker.APIClient, overrides: dict[str, Any]) -> int:
    """A port just below those that the engine will hand out next."""
    with serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=overrides) as registry_server:
        containers = containers_of(engine, session_of(registry_server.port)).values()
        ports = [c["NetworkSettings"]["Ports"]["8000/tcp"][0]["HostPort"] for c in containers]
    return max(map(int, ports))


@contextlib.contextmanager
def hogged(begin: int, number: int) -> Iterator[int]:
    """So many loopback ports held, from ``begin`` on; how many of them nobody else had."""
    with contextlib.ExitStack() as held:
        taken = 0
        for port in range(begin, min(begin + number, 65536)):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                taken += 1
        yield taken


@pytest.mark.parametrize("sessions", [4, pytest.param(16, marks=pytest.mark.full)])
def test_sessions_that_start_at_once_among_port_hogs(
    engine: docker.APIClient, overrides: dict[str, Any], sessions: int
) -> None:
    """The ports that the engine would hand out next are held: it is asked again, until it finds others."""
    begin = next_ports(engine, overrides)
    with hogged(begin + 1, 40) as taken, contextlib.ExitStack() as running:
        assert taken > 20
        processes = [running.enter_context(serve(overrides)) for _ in range(sessions)]
        ports = [port_of(process, 300.0) for process in processes]
        served = {session_of(port) for port in ports}
        assert len(set(ports)) == len(served) == sessions
        for session in served:
            assert set(containers_of(engine, session)) == SERVERS
        for process in processes:
            process.tell("return")
        assert [process.wait(120) for process in processes] == [0] * sessions


def test_one_fixed_port_for_two_sessions_has_one_winner(
    engine: docker.APIClient, overrides: dict[str, Any], free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the port free, and start their registries at the same time."""
    with EngineProxy(tmp_path / "s") as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        first_starts = proxy.add(Rule("POST .*/containers/.*/start", "delay request", seconds=1.0, times=6))
        with serve(overrides, free_port) as one, serve(overrides, free_port) as other:
            assert first_starts.hit.wait(60)
            wait_until_either(one, other)
            winner, loser = (one, other) if "serving" in "".join(one.said) else (other, one)
            assert loser.wait() == 1
            said = "\n".join(loser.errors)
            assert f"ConfigError: registry_port {free_port} is in use by session " in said
            assert session_of(free_port) in said
            assert f"pid {winner.pid}" in said
            assert set(containers_of(engine, session_of(free_port))) == SERVERS
            stop(winner)


def wait_until_either(one: ServingProcess, other: ServingProcess) -> None:
    """Until one serves and the other has ended."""
    deadline = time.monotonic() + 90
    while sum("serving" in "".join(process.said) for process in (one, other)) != 1 or (
        one.process.poll() is None and other.process.poll() is None
    ):
        assert time.monotonic() < deadline, [one.said, one.errors, other.said, other.errors]
        time.sleep(0.05)


def test_a_sibling_is_touched_by_nothing(engine: docker.APIClient, overrides: dict[str, Any]) -> None:
    """Not by another's start, teardown, failure, death with its keeper, nor by the sweep of the dead one."""
    with serve(overrides) as sibling:
        port = port_of(sibling)
        before = containers_of(engine, session_of(port))
        with serve(overrides) as returns:
            port_of(returns)
            stop(returns)
        with serve(acting({"exits": 3}, results_dir=overrides["results_dir"])) as fails:
            assert fails.wait() == 1
        with serve(overrides) as dies:
            orphan = session_of(port_of(dies))
            kill_with_keeper(dies)
        assert set(containers_of(engine, orphan)) == SERVERS
        with serve(overrides) as sweeps:
            port_of(sweeps)
            assert containers_of(engine, orphan) == {}
            stop(sweeps)
        after = containers_of(engine, session_of(port))
        assert {c["Id"]: c["State"]["Pid"] for c in after.values()} == {
            c["Id"]: c["State"]["Pid"] for c in before.values()
        }
        assert get(port, "/")["status"] == "ok"
        stop(sibling)


def test_an_owner_that_cannot_be_judged_is_reported_and_left_alone(
    engine: docker.APIClient, our_engine: DockerEngine, overrides: dict[str, Any]
) -> None:
    elsewhere = Owner(host="another-host", boot="another-boot", pid_namespace="", pid=1, start="1")
    network = engine.create_network("nemo-gym-elsewhere", labels=session_labels("e15e00here", elsewhere))["Id"]
    nobody = engine.create_network("nemo-gym-nobody", labels={SESSION: "0b0d0"})["Id"]
    try:
        assert set(reaper.sweep(our_engine).unjudged) >= {"e15e00here", "0b0d0"}
        with serve(overrides) as process:
            said = process.wait_for("owner unknown")
            assert "e15e00here" in said
            assert "0b0d0" in said
            port_of(process)
            stop(process)
        assert {n["Id"] for n in engine.networks()} >= {network, nobody}
    finally:
        engine.remove_network(network)
        engine.remove_network(nobody)


def test_sweeps_of_one_orphan_at_the_same_time(engine: docker.APIClient, overrides: dict[str, Any]) -> None:
    """Several sessions start over the same remains: each serves, and the remains are gone."""
    with serve(overrides) as dies:
        orphan = session_of(port_of(dies))
        kill_with_keeper(dies)
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(serve(overrides)) for _ in range(3)]
        for process in processes:
            port_of(process)
        assert containers_of(engine, orphan) == {}
        assert not engine.networks(filters={"label": f"{SESSION}={orphan}"})
        for process in processes:
            stop(process)


def test_the_error_for_a_port_that_an_orphan_holds(
    engine: docker.APIClient, overrides: dict[str, Any], free_port: int
) -> None:
    """Our own orphan on the wanted port is swept by the start that wants it, not complained of."""
    with serve(overrides, free_port) as dies:
        port_of(dies)
        kill_with_keeper(dies)
    with serve(overrides, free_port) as next_one:
        assert port_of(next_one) == free_port
        stop(next_one)


def test_a_container_of_a_stranger_on_the_port_is_named(
    engine: docker.APIClient, overrides: dict[str, Any], free_port: int
) -> None:
    with serve(overrides) as helper:  # its image serves as the stranger's
        image = containers_of(engine, session_of(port_of(helper)))["registry"]["Image"]
        stop(helper)
    binding = engine.create_host_config(port_bindings={8000: ("127.0.0.1", free_port)})
    stranger = engine.create_container(image, ["sleep", "60"], name="stranger", ports=[8000], host_config=binding)["Id"]
    try:
        engine.start(stranger)
        with (
            pytest.raises(
                ConfigError, match=f"registry_port {free_port} is in use by the container stranger"
            ) as failed,
            serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=overrides, registry_port=free_port),
        ):
            pytest.fail("served")
        assert "docker rm -f stranger" in str(failed.value)
    finally:
        engine.remove_container(stranger, force=True)
    assert json.dumps(engine.containers(all=True)).count("stranger") == 0
