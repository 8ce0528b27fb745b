"""The package as an outsider has it: a wheel in a virtual environment of its own, far from any checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import docker
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "example_project"
TESTS = 11


class Outside:
    """A folder with a virtual environment that has the wheel with its extra, a copy of the example, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.cache = folder / "cache"
        hidden = {"VIRTUAL_ENV", "PYTHONPATH", "NEMO_GYM_CACHE_DIR", "NEMO_GYM_EXTRA_ROOTS"}
        self.environ = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environ |= {"XDG_CACHE_HOME": str(self.cache), "TESTCONTAINERS_RYUK_DISABLED": "true"}

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder / "project", env=self.environ,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def gym(self, *words: str) -> str:
        return self.run(self.python.with_name("gym"), *words)


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    made = Outside(tmp_path)
    shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    made.run(sys.executable, "-m", "venv", tmp_path / "venv")
    made.run(made.python, "-m", "pip", "install", "-q", f"{wheel}[testing]", "pytest-xdist")
    return made


def check_example(outside: Outside, engine: docker.APIClient) -> None:
    """Run its tests by two workers; then what is left is caches that ``gym clean`` names and removes."""
    said = outside.run(outside.python, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--basetemp=../temporary")
    assert f"{TESTS} passed in" in said, said
    assert "skipped" not in said
    caches = json.loads(outside.gym("clean", "--yes", "--keep-images", "--json"))["caches"]
    assert {Path(cache["path"]).name for cache in caches} >= {"benchmarks", "installed"}
    outside.run(outside.python, "-m", "pip", "uninstall", "-q", "-y", "nemo-gym")
    assert [path.name for path in outside.cache.iterdir() if path.name != "pip"] == []
    assert list((outside.folder / "venv").rglob("*nemo_gym*")) == []


def test_an_outsiders_project(outside: Outside, engine: docker.APIClient) -> None:
    check_example(outside, engine)


@pytest.mark.full
def test_an_outsiders_project_on_an_engine_without_images(outside: Outside, engine: docker.APIClient) -> None:
    removed = json.loads(outside.gym("clean", "--yes", "--json"))
    assert removed["removed"] is True
    label = {"label": "nemo-gym.context"}
    assert engine.images(filters=label) == []
    check_example(outside, engine)
    assert len(engine.images(filters=label)) == 6  # the base, the registry, three servers, the endpoint
    named = json.loads(subprocess.run(
        [sys.executable, "-m", "nemo_gym", "clean", "--dry-run", "--json"], check=True, capture_output=True, text=True
    ).stdout)["images"]  # fmt: skip
    assert len(named) == 6
