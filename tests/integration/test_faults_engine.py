"""An engine that is slow, loses calls, restarts or runs out of addresses: success or an error in time, and no trace."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from nemo_gym.environment import serve_benchmark
from nemo_gym.errors import ConfigError
from tests.support.engine_proxy import EngineProxy, Fault, Rule
from tests.support.leaks import take_snapshot, wait_for_nothing_left
from tests.support.private_engine import PrivateEngine, private_engine
from tests.support.serving_process import ServingProcess, keepers_of
from tests.support.sessions import SESSION
from tests.support.stub_servers import BENCHMARK, MODEL_TYPE, SERVER, acting, make_stubs

CALL_TIMEOUT_S = 3
"""What an engine call may take in these tests, instead of a minute or two."""

IN_TIME_S = 25.0
"""A start and a teardown, with one call in each that is given up after its timeout."""

CALLS = {
    "network": "POST .*/networks/create",
    "create": rf"POST .*/containers/create\?.*{SERVER}",
    "attach": "POST .*/containers/.*/attach",
    "start": "POST .*/containers/.*/start",
    "inspect": "GET .*/containers/[0-9a-f]+/json",
    "events": "GET .*/events",
    "list": "GET .*/containers/json",
    "stop": "POST .*/containers/.*/stop",
    "delete": "DELETE .*/containers/",
    "delete network": "DELETE .*/networks/",
}
FAULTS: tuple[Fault, ...] = (
    "delay request",
    "delay answer",
    "drop request",
    "drop answer",
    "break request",
    "break answer",
)
BY_DEFAULT = {
    ("network", "drop answer"),
    ("create", "drop answer"),
    ("start", "break answer"),
    ("events", "drop request"),
    ("inspect", "delay answer"),
    ("delete", "drop request"),
}
CASES = [
    pytest.param(call, fault, marks=[] if (call, fault) in BY_DEFAULT else [pytest.mark.full], id=f"{call}-{fault}")
    for call in CALLS
    for fault in FAULTS
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root"
    make_stubs(folder)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder))
    return folder


@pytest.fixture
def proxy(
    engine: docker.APIClient, root: Path, tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineProxy]:
    with EngineProxy(tmp_path / "s") as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        before = take_snapshot(engine, temporary_folder)
        yield proxy
        # the proxy goes last: keepers work through it
        wait_for_nothing_left(engine, before, temporary_folder, 30.0)


def serve_once(root: Path) -> str:
    """What serving and stopping comes to: "" or a ``ConfigError``'s message. Anything else is raised."""
    overrides = acting(
        server_start_timeout_seconds=CALL_TIMEOUT_S,
        server_ready_timeout_seconds=10,
        server_stop_grace_seconds=1,
        results_dir=str(root / "results"),
    )
    try:
        with serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=overrides):
            pass
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("call", "fault"), CASES)
def test_a_call_that_is_late_or_lost(root: Path, proxy: EngineProxy, call: str, fault: Fault) -> None:
    """One call of its kind is hit; then the engine works again."""
    rule = proxy.add(Rule(CALLS[call], fault, seconds=1.0, times=1))
    began = time.monotonic()
    said = serve_once(root)
    assert time.monotonic() - began < IN_TIME_S
    assert rule.hits == 1
    if fault.startswith("delay"):
        assert said == ""  # slow is not broken
    elif call in ("delete", "delete network", "stop"):
        assert said == ""  # done again
    elif said:
        assert "engine" in said


@pytest.mark.full
@pytest.mark.parametrize("call", ["create", "start", "inspect", "events"])
def test_calls_that_are_lost_for_ever(root: Path, proxy: EngineProxy, call: str) -> None:
    """Each call of that kind is lost: an error in time, and what there is is removed."""
    proxy.add(Rule(CALLS[call], "drop answer"))
    began = time.monotonic()
    assert "engine" in serve_once(root)
    assert time.monotonic() - began < IN_TIME_S


def test_an_engine_that_is_gone_at_the_end_is_left_to_the_keeper(
    engine: docker.APIClient, root: Path, proxy: EngineProxy
) -> None:
    """The teardown cannot reach the engine: an error that says who goes on; once it answers, nothing is left."""
    overrides = acting(server_stop_grace_seconds=1, results_dir=str(root / "results"))
    began = time.monotonic()
    with (
        pytest.raises(ConfigError, match="stopped answering") as failed,
        serve_benchmark(BENCHMARK, model_type=MODEL_TYPE, overrides=overrides),
    ):
        gone = proxy.add(Rule(".*", "break request"))
    assert time.monotonic() - began < IN_TIME_S
    assert "goes on removing it" in "".join([str(failed.value), *failed.value.__notes__])
    assert len(engine.containers(filters={"label": SESSION})) == 3
    proxy.rules.remove(gone)


# -- an engine of the test's own -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def private(engine: docker.APIClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
    folder = tmp_path_factory.mktemp("private")
    make_stubs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEMO_GYM_EXTRA_ROOTS", str(folder))
        with private_engine(engine) as private:
            yield private


@pytest.fixture
def serve_there(root: Path, private: PrivateEngine) -> Iterator[Callable[..., ServingProcess]]:
    """Serve on the private engine, in another process; at the end nothing is left there either."""

    def serve(environ: dict[str, str] | None = None) -> ServingProcess:
        overrides = acting(server_stop_grace_seconds=1, results_dir=str(root / "results"))
        return ServingProcess(overrides, environ=environ or private.environ, wrapper=private.wrapper)

    yield serve
    wait_until(lambda: not private.pieces())


def wait_until(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.parametrize("cause", ["return", "SIGKILL"])
def test_an_engine_that_restarts_while_serving(
    private: PrivateEngine, serve_there: Callable[..., ServingProcess], cause: str
) -> None:
    """The containers die with the engine; what is left of them goes once it is back."""
    with serve_there() as process:
        process.wait_for("serving on")
        private.stop()
        if cause == "SIGKILL":
            os.kill(process.pid, signal.SIGKILL)
        private.start()
        if cause == "return":
            assert private.pieces()
            process.tell("return")
        assert process.wait() == (0 if cause == "return" else -signal.SIGKILL), process.errors
        wait_until(lambda: not private.pieces())


@pytest.mark.full
def test_exhausted_address_pools(private: PrivateEngine, serve_there: Callable[..., ServingProcess]) -> None:
    """The engine's only range is held by a live session: an error with the remedy. By a dead one: it is swept."""
    with serve_there() as holder:
        holder.wait_for("serving on")
        with serve_there() as other:
            assert other.wait() == 1
        assert "ConfigError" in "\n".join(other.errors)
        assert "no free network address range" in "\n".join(other.errors)
        assert "docker network prune" in "\n".join(other.errors)
        assert len(private.pieces()) == 4  # the live session's three containers and network
        for keeper in keepers_of(holder.pid):
            os.kill(keeper, signal.SIGKILL)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert len(private.pieces()) == 4
    with serve_there() as next_one:
        next_one.wait_for("serving on")
        next_one.tell("return")
        assert next_one.wait() == 0, next_one.errors


@pytest.mark.full
def test_a_holder_that_dies_at_the_last_moment_is_swept(
    private: PrivateEngine, serve_there: Callable[..., ServingProcess], tmp_path: Path
) -> None:
    """It lived when the start swept, and is dead when the network cannot be made: swept again, tried again."""
    with serve_there() as holder, EngineProxy(tmp_path / "p", engine=private.socket) as proxy:
        holder.wait_for("serving on")
        rule = proxy.add(Rule(CALLS["network"], "delay request", seconds=1.0, times=1))
        with serve_there({"DOCKER_HOST": proxy.url}) as other:
            assert rule.hit.wait(30)
            for keeper in keepers_of(holder.pid):
                os.kill(keeper, signal.SIGKILL)
            os.kill(holder.pid, signal.SIGKILL)
            other.wait_for("serving on")
            other.tell("return")
            assert other.wait() == 0, other.errors
