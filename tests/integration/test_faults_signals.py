"""However the owner of a session ends, in whatever phase, nothing of the session is left.

``CASES`` holds the whole matrix; the few that run by default are named in ``BY_DEFAULT``. Every test ends with the
check of ``conftest.py``: engine, processes and temporary files are as before.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from tests.support.engine_proxy import EngineProxy, Rule
from tests.support.leaks import processes_started_under, take_snapshot, wait_for_nothing_left
from tests.support.matrix_table import note_cell
from tests.support.serving_process import ServingProcess
from tests.support.sessions import SESSION
from tests.support.stub_servers import MODEL, SERVER, acting, make_benchmark, make_stubs

ENDED_S = 30.0
"""By then the process has ended and the engine is empty, whatever the cause."""

PHASES = ("build", "network", "create", "start", "wait", "serving", "teardown")
CAUSES = (
    "return",
    "exception",
    "Ctrl-C",
    "Ctrl-C twice",
    "SIGTERM",
    "SIGHUP",
    "exit, block open",
    "SIGKILL",
    "SIGKILL of the group",
    "terminal closed",
)
EXIT_CODES = {
    "return": 0,
    "exception": 1,
    "Ctrl-C": -signal.SIGINT,
    "Ctrl-C twice": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "SIGHUP": -signal.SIGHUP,
    "exit, block open": 0,
    "SIGKILL": -signal.SIGKILL,
    "SIGKILL of the group": -signal.SIGKILL,
    "terminal closed": -signal.SIGHUP,
}
BY_DEFAULT = {
    ("build", "Ctrl-C twice"),
    ("build", "SIGKILL of the group"),
    ("network", "Ctrl-C"),
    ("create", "SIGKILL"),
    ("start", "exception"),
    ("start", "SIGTERM"),
    ("wait", "Ctrl-C twice"),
    ("serving", "exit, block open"),
    ("serving", "terminal closed"),
    ("teardown", "Ctrl-C twice"),
    ("teardown", "SIGKILL of the group"),
}
# A start has nothing to return from, nor a block to leave open; a block that is being left is open no more.
IMPOSSIBLE = {(phase, cause) for phase in PHASES[:5] for cause in ("return", "exit, block open")} | {
    ("teardown", "exit, block open")
}
CASES = [
    pytest.param(phase, cause, marks=[] if (phase, cause) in BY_DEFAULT else [pytest.mark.full], id=f"{phase}-{cause}")
    for phase in PHASES
    for cause in CAUSES
    if (phase, cause) not in IMPOSSIBLE
]


@dataclass
class Scene:
    """One session about to be ended: the engine seen directly, and the proxy that the session and its keeper use."""

    engine: docker.APIClient
    proxy: EngineProxy
    root: Path
    temporary_folder: Path

    def pieces(self) -> list[str]:
        """What of any session is on the engine, and any build under way."""
        filters = {"label": SESSION}
        found = [c["Names"][0] for c in self.engine.containers(all=True, filters=filters)]
        found += [network["Name"] for network in self.engine.networks(filters=filters)]
        return found + [c["Command"] for c in self.engine.containers() if SLOW in c["Command"]]

    def last_seen(self) -> float:
        """When the last piece was there. Looks until the keeper has ended, which is some seconds after that."""
        seen, deadline = time.monotonic(), time.monotonic() + ENDED_S
        while (pieces := self.pieces()) or (keepers := processes_started_under(self.temporary_folder)):
            assert time.monotonic() < deadline, pieces or keepers
            seen = time.monotonic() if pieces else seen
            time.sleep(0.02)
        return seen

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def scene(
    engine: docker.APIClient, tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    root = tmp_path / "root"
    make_stubs(root)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(root))
    with EngineProxy(tmp_path / "s") as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        before = take_snapshot(engine, temporary_folder)
        yield Scene(engine, proxy, root, temporary_folder)
        # the proxy goes last: keepers work through it
        wait_for_nothing_left(engine, before, temporary_folder, ENDED_S)


SLOW = "sleep 307"


def begin(scene: Scene, phase: str, cause: str) -> tuple[ServingProcess, Rule | None]:
    """A process that will fail in ``phase``, or that can be caught there; the rule tells when it is in it."""
    fails = cause == "exception"
    benchmark, acts, rule = "stub", {}, None
    if phase == "build":
        benchmark = "stub_slow"
        make_benchmark(scene.root, benchmark, "RUN false\n" if fails else f"RUN {SLOW}\n")
    elif phase == "network":
        call = "POST .*/networks/create"
        rule = Rule(call, "break answer" if fails else "delay request", seconds=2.0, times=1)
    elif phase == "create":  # the call arrives when its caller may be long gone
        call = rf"POST .*/containers/create\?.*{SERVER}"
        rule = Rule(call, "break answer" if fails else "delay request", seconds=2.0, times=1)
    elif phase == "start":
        rule = Rule(r"POST .*/containers/.*/start", "break answer" if fails else "delay answer", seconds=2.0, times=1)
    elif phase == "wait":
        acts = {"exits": 3} if fails else {"listens_after_s": 600}
    elif phase == "teardown":
        acts = {"ignores_sigterm": True}
        rule = Rule(r"POST .*/containers/.*/stop", "delay request")
    if rule is not None:
        scene.proxy.add(rule)
    overrides = acting(acts, benchmark=benchmark, server_stop_grace_seconds=3, results_dir=str(scene.root / "results"))
    return ServingProcess(overrides, benchmark=benchmark, terminal=cause == "terminal closed"), rule


def reach(scene: Scene, process: ServingProcess, rule: Rule | None, phase: str, cause: str) -> None:
    """Wait until the process is in the middle of ``phase``."""
    if phase == "build":
        scene.wait_until(lambda: any(SLOW in piece for piece in scene.pieces()))
    elif phase == "wait":
        scene.wait_until(lambda: {SERVER, MODEL} <= {name.rpartition("-")[2] for name in scene.pieces()})
    elif phase in ("serving", "teardown"):
        process.wait_for("serving on")
    if phase == "teardown":
        process.tell("raise" if cause == "exception" else "return")
    if rule is not None:
        assert rule.hit.wait(60)


def end(process: ServingProcess, phase: str, cause: str) -> None:
    """Make ``cause`` happen to it."""
    if cause in ("return", "exception") and phase == "serving":
        process.tell({"return": "return", "exception": "raise"}[cause])
    elif cause == "exit, block open":
        process.tell("exit")
    elif cause in ("Ctrl-C", "Ctrl-C twice"):
        process.signal_group(signal.SIGINT)
        if cause == "Ctrl-C twice":
            time.sleep(0.3)
            process.signal_group(signal.SIGINT)
    elif cause in ("SIGTERM", "SIGHUP", "SIGKILL"):
        os.kill(process.pid, getattr(signal, cause))
    elif cause == "SIGKILL of the group":
        process.signal_group(signal.SIGKILL)
    elif cause == "terminal closed":
        process.close_terminal()


@pytest.mark.parametrize(("phase", "cause"), CASES)
def test_nothing_is_left(scene: Scene, phase: str, cause: str, record_property: Callable[[str, object], None]) -> None:
    process, rule = begin(scene, phase, cause)
    with process:
        if cause != "exception" or phase in ("serving", "teardown"):
            reach(scene, process, rule, phase, cause)
            assert scene.pieces() or phase == "network"  # the first piece of all
        ending = time.monotonic()
        end(process, phase, cause)
        code = process.wait(ENDED_S)
        note_cell(record_property, phase, cause, scene.last_seen() - ending)
        assert code == EXIT_CODES[cause], process.errors
    if cause == "return":
        assert process.errors == []
    elif cause == "exit, block open":
        assert not any("Traceback" in line for line in process.errors), process.errors
    elif cause.startswith("Ctrl-C"):
        assert process.errors[-1].rstrip(": ") == "KeyboardInterrupt"
        assert sum("Traceback" in line for line in process.errors) == 1, "\n".join(process.errors)
