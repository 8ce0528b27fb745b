"""Which Python scripts/venv makes the virtual environment of, with stand-ins for every Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = """#!/bin/sh
[ "$1" = -c ] || echo "VERSION $*" >>log
case "$*" in
-V) echo "Python VERSION" ;;
"-m venv --clear .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""


def stand_in(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STAND_IN.replace("VERSION", version))
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the script reads, and a current .venv of Python 3.12.1."""
    for name in ("scripts/venv", "scripts/lib.sh", "pyproject.toml", "requirements/dev.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    ran(tmp_path, stand_in(tmp_path / "first", "3.12.1"))
    (tmp_path / "log").unlink()
    return tmp_path


def ran(checkout: Path, python: Path | None, code: int = 0) -> str:
    """What the script prints."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    environ |= {} if python is None else {"PYTHON": str(python)}
    done = subprocess.run(
        [checkout / "scripts" / "venv"], env=environ, cwd="/", capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def calls(checkout: Path) -> list[str]:
    """What any Python was asked to do, versions and one-liners left out."""
    log = checkout / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if not line.endswith(" -V")]


def test_one_that_is_current_is_left_alone(checkout: Path) -> None:
    assert ran(checkout, None) == ""
    assert ran(checkout, stand_in(checkout / "same", "3.12.1")) == ""
    assert calls(checkout) == []


def test_another_python_than_its_own_makes_it_anew(checkout: Path) -> None:
    assert ran(checkout, stand_in(checkout / "other", "3.13.2")).endswith(", with Python 3.13.2\n")
    made, *installed = calls(checkout)
    assert made == "3.13.2 -m venv --clear .venv"
    assert [line.split()[:4] for line in installed] == [["3.13.2", "-m", "pip", "--disable-pip-version-check"]] * 2
    assert ran(checkout, checkout / "other") == ""


def test_without_one_the_python_of_an_outdated_environment_stays(checkout: Path) -> None:
    (checkout / "requirements" / "dev.txt").write_text("x==1\n")
    assert ran(checkout, None) == (
        "== Installing 1 pinned Python packages into .venv (requirements/dev.txt), with Python 3.12.1\n"
    )


def test_one_that_does_not_run_is_named(checkout: Path) -> None:
    said = ran(checkout, checkout / "gone" / "python3.14", code=2)
    assert f"PYTHON is {checkout}/gone/python3.14, which does not run" in said
    assert "or leave it out." in said
    assert calls(checkout) == []
