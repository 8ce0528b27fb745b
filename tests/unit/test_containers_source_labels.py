"""An image says which revision of its source it was built from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import nemo_gym
from nemo_gym.containers.source_labels import REVISION, VERSION, source_labels


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_checkout(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    for folder in (ours, other):
        folder.mkdir()
        (folder / "app.py").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (other / "app.py").write_text("2")
    assert source_labels(ours) == {VERSION: nemo_gym.__version__, REVISION: commit}
    (ours / "new.py").write_text("3")
    assert source_labels(ours) == {VERSION: nemo_gym.__version__, REVISION: f"{commit}-dirty"}


def test_no_checkout_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_labels(None) == {VERSION: nemo_gym.__version__}
    assert source_labels(tmp_path) == {VERSION: nemo_gym.__version__}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_labels(Path(__file__).parent) == {VERSION: nemo_gym.__version__}
