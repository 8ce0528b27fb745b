"""Every integration test runs on the real engine and ends with the check that nothing is left."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.environment import PlannedBenchmark, plan_benchmark
from tests.support import matrix_table
from tests.support.leaks import take_snapshot, wait_for_nothing_left

LEAK_DEADLINE_S = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    matrix_table.add_option(parser)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    path = matrix_table.write_table(terminalreporter.config)
    if path is not None:
        terminalreporter.write_line(f"The table of phases and causes: {path}")


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.APIClient]:
    """The engine itself, seen without any of this package's code. No engine is a failure, never a skip."""
    client = docker.from_env(timeout=60).api
    client.ping()
    yield client
    client.close()


@pytest.fixture
def temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that this process and its children take for the system's temporary one."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture(autouse=True)
def nothing_is_left(engine: docker.APIClient, temporary_folder: Path) -> Iterator[None]:
    """Compares the engine's complete lists, our processes and temporary files before and after the test."""
    before = take_snapshot(engine, temporary_folder)
    yield
    left = wait_for_nothing_left(engine, before, temporary_folder, LEAK_DEADLINE_S)
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="session")
def planned() -> PlannedBenchmark:
    """The benchmark that the tests serve, planned once."""
    return plan_benchmark("truthfulqa_mc1")


@pytest.fixture
def our_engine() -> Iterator[DockerEngine]:
    """The engine through this package."""
    import os

    connected = DockerEngine.connect(os.environ)
    yield connected
    connected.close()


@pytest.fixture
def free_port() -> int:
    """A port that nobody listened on a moment ago, for tests of ``registry_port``."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
