"""Servers that misbehave: each ends in one report that says which, how and what to do, or is waited for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from nemo_gym.environment import serve_benchmark
from nemo_gym.errors import ServerStartError
from tests.support.sessions import containers_of, session_of
from tests.support.stub_servers import BENCHMARK, MODEL, MODEL_TYPE, SERVER, SERVERS, acting, make_benchmark, make_stubs

PLANTED = "sk-planted-77d1c0ffee"
ENDED_AT_ONCE_S = 20.0
"""Far below the 120 s that a server has by default: its end, not the deadline, ended the wait."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root"
    make_stubs(folder)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder))
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def fail_to_serve(root: Path, results: Path) -> Callable[..., ServerStartError]:
    """Serve the stubs as they are told to act, in vain: the error, which names a folder with every server's log."""

    def fail(acts: dict[str, Any], *, benchmark: str = BENCHMARK, **more: Any) -> ServerStartError:
        overrides = acting(acts, benchmark=benchmark, results_dir=str(results), **more)
        with (
            pytest.raises(ServerStartError) as failed,
            serve_benchmark(benchmark, model_type=MODEL_TYPE, overrides=overrides),
        ):
            pytest.fail("served")
        (session,) = (results / "logs").iterdir()
        assert str(session) in str(failed.value)
        assert {path.stem for path in session.iterdir()} == SERVERS
        return failed.value

    return fail


def log_of(results: Path, server: str = SERVER) -> str:
    (session,) = (results / "logs").iterdir()
    return (session / f"{server}.log").read_text(encoding="utf-8")


def test_that_never_listens(fail_to_serve: Callable[..., ServerStartError]) -> None:
    began = time.monotonic()
    error = fail_to_serve({"listens_after_s": 600}, server_ready_timeout_seconds=5)
    assert (error.server, error.phase, error.exit_code, error.oom_killed) == (SERVER, "ready", None, False)
    assert "after 5 s" in str(error)
    assert "server_ready_timeout_seconds" in str(error)
    assert "logged nothing" in str(error)
    assert time.monotonic() - began < ENDED_AT_ONCE_S


@pytest.mark.parametrize(
    "acts", [{"listens_after_s": 1.5}, {"unavailable_s": 1.5}], ids=["listens late", "answers 503 first"]
)
def test_that_is_late_is_waited_for(root: Path, acts: dict[str, Any]) -> None:
    began = time.monotonic()
    with serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=acting(acts)):
        assert time.monotonic() - began > 1.5


def test_that_answers_503_for_ever(fail_to_serve: Callable[..., ServerStartError]) -> None:
    error = fail_to_serve({"unavailable_s": 600}, server_ready_timeout_seconds=5)
    assert (error.server, error.phase) == (SERVER, "ready")
    assert "503" in str(error)


def test_that_answers_as_another_server(fail_to_serve: Callable[..., ServerStartError]) -> None:
    error = fail_to_serve({"says_it_is": "an_impostor"})
    assert (error.server, error.phase) == (SERVER, "ready")
    assert "is not what answers on its port" in str(error)
    assert "an_impostor" in str(error)


@pytest.mark.parametrize("code", [0, 3])
def test_that_exits(fail_to_serve: Callable[..., ServerStartError], results: Path, code: int) -> None:
    began = time.monotonic()
    error = fail_to_serve({"prints": ["my last words"], "exits": code})
    assert (error.server, error.phase, error.exit_code, error.oom_killed) == (SERVER, "ready", code, False)
    assert f"exited with code {code}" in str(error)
    assert error.log_tail == "my last words"
    assert log_of(results) == "my last words\n"
    assert time.monotonic() - began < ENDED_AT_ONCE_S
    if code == 0:
        assert "Likely cause: its program came to its end instead of serving" in str(error)


def test_that_runs_out_of_memory(fail_to_serve: Callable[..., ServerStartError]) -> None:
    error = fail_to_serve({"memory_mb": 400}, container={"memory": "64m"})
    assert (error.server, error.phase, error.exit_code, error.oom_killed) == (SERVER, "ready", 137, True)
    assert "container.memory" in str(error)


def test_that_dies_while_another_is_awaited(fail_to_serve: Callable[..., ServerStartError]) -> None:
    """It was ready, and its end ends the start at once all the same."""
    began = time.monotonic()
    error = fail_to_serve({"dies_after_s": 1}, model_acts={"listens_after_s": 600})
    assert (error.server, error.exit_code) == (SERVER, 3)
    assert time.monotonic() - began < ENDED_AT_ONCE_S


@pytest.mark.parametrize("stubborn", [[SERVER], [SERVER, MODEL]], ids=["one", "two"])
def test_that_ignores_sigterm_costs_one_grace_period(root: Path, stubborn: list[str]) -> None:
    ignores = {"ignores_sigterm": True}
    overrides = acting(
        ignores, model_acts=ignores if MODEL in stubborn else {}, server_stop_grace_seconds=2, results_dir=str(root)
    )
    with serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=overrides):
        leaving = time.monotonic()
    took_s = time.monotonic() - leaving
    assert 2.0 <= took_s < 3.9  # less than two periods


def test_that_brings_a_volume_leaves_none(engine: docker.APIClient, root: Path) -> None:
    make_benchmark(root, "stub_volume", 'VOLUME ["/data"]\n')
    overrides = acting(benchmark="stub_volume")
    with serve_benchmark("stub_volume", model_type=MODEL_TYPE, overrides=overrides) as registry_server:
        mounts = containers_of(engine, session_of(registry_server.port))[SERVER]["Mounts"]
        volumes = [mount["Name"] for mount in mounts if mount["Type"] == "volume"]
        assert len(volumes) == 1
    assert volumes[0] not in {volume["Name"] for volume in engine.volumes()["Volumes"] or []}


def test_that_prints_a_secret(root: Path, fail_to_serve: Callable[..., ServerStartError], results: Path) -> None:
    acts = {"prints_setting": "judge_api_key", "prints": [f"Authorization: Bearer {PLANTED}"], "exits": 3}
    config = root / "benchmarks" / BENCHMARK / "config.yaml"
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings[SERVER]["resources_servers"][BENCHMARK]["judge_api_key"] = PLANTED
    config.write_text(json.dumps(settings), encoding="utf-8")
    error = fail_to_serve(acts)
    assert "my settings: judge_api_key = ***" in str(error)
    assert "my settings: judge_api_key = ***" in log_of(results)
    assert PLANTED not in str(error) + error.log_tail + log_of(results)


@pytest.mark.parametrize("line_length", [1_000, 1_000_000], ids=["many lines", "endless lines"])
def test_that_floods_its_log(fail_to_serve: Callable[..., ServerStartError], results: Path, line_length: int) -> None:
    error = fail_to_serve({"flood_mb": 80, "flood_line": line_length, "exits": 3})
    assert error.exit_code == 3
    assert error.log_tail.endswith("the flood is over")
    assert len(str(error)) < 20_000
    kept = log_of(results)
    assert kept.endswith("the flood is over\n")
    assert len(kept) < 55_000_000


def test_that_cannot_be_created_is_told_in_the_engines_own_words(root: Path, results: Path) -> None:
    """The engine refuses a capability that there is not: a failure of that server, in that phase."""
    overrides = acting(container={"cap_add": ["NO_SUCH_CAPABILITY"]}, results_dir=str(results))
    with (
        pytest.raises(ServerStartError, match="NO_SUCH_CAPABILITY") as failed,
        serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=overrides),
    ):
        pytest.fail("served")
    assert (failed.value.server, failed.value.phase) == (SERVER, "create")
