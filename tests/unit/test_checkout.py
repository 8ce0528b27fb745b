"""Which commit the package runs from, and which it must not take for that."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nemo_gym.environment import checkout
from nemo_gym.environment.checkout import gym_commit


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return folder


def test_head_in_every_layout(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert gym_commit(repository) == commit
    git(repository, "pack-refs", "--all")
    assert gym_commit(repository) == commit
    worktree = tmp_path / "worktree"
    git(repository, "worktree", "add", "-q", "-b", "side/branch", str(worktree))
    git(worktree, "commit", "-q", "--allow-empty", "-m", "two")
    assert gym_commit(worktree) == git(worktree, "rev-parse", "HEAD") != commit
    git(repository, "pack-refs", "--all")
    assert gym_commit(worktree) == git(worktree, "rev-parse", "HEAD")
    git(repository, "checkout", "-q", "--detach")
    assert gym_commit(repository) == commit


def test_a_layout_of_its_own_is_left_to_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    monkeypatch.setattr(checkout, "_commit_in_files", lambda git_dir: None)
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("GIT_WORK_TREE", "/elsewhere")
    assert gym_commit(repository) == commit
    monkeypatch.setenv("PATH", "")
    assert gym_commit(repository) is None


def test_a_repository_further_up_is_not_this_package_s(repository: Path) -> None:
    inside = repository / ".venv" / "lib" / "nemo_gym" / "_data"
    inside.mkdir(parents=True)
    assert gym_commit(inside) is None


def test_a_repository_without_commits_and_a_broken_one_have_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert gym_commit(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff")
    assert gym_commit(tmp_path) is None


def test_package_data_has_no_commit(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setattr(checkout, "is_package_data", lambda root: True)
    assert gym_commit(repository) is None
