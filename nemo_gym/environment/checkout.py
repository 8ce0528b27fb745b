"""Which commit of this package this is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from nemo_gym.config.sources import install_root, is_package_data

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_GIT_TIMEOUT_S: Final = 10.0


def gym_commit(root: Path | None = None) -> str | None:
    """The commit of the checkout this package runs from; None when it does not run from one.

    Only the checkout's own ``.git`` counts: a repository further up, such as one that merely contains the virtual
    environment this package is installed in, says nothing about this package.
    """
    root = install_root() if root is None else root
    if is_package_data(root) or not (root / ".git").exists():
        return None
    return _commit_in_files(root / ".git") or _commit_from_git(root)


def _commit_in_files(git_dir: Path) -> str | None:
    """HEAD's commit as the usual layouts store it, which needs no git program; None for any other layout."""
    try:
        if git_dir.is_file():
            git_dir = git_dir.parent / git_dir.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (git_dir / "HEAD").read_text(encoding="utf-8").strip()
        if _COMMIT.fullmatch(head):
            return head
        ref = head.removeprefix("ref:").strip()
        common = git_dir / "commondir"
        stores = [git_dir]
        if common.is_file():
            stores.append(git_dir / common.read_text(encoding="utf-8").strip())
        return next((commit for store in stores if (commit := _commit_of_ref(store, ref))), None)
    except (OSError, UnicodeDecodeError):
        return None


def _commit_of_ref(store: Path, ref: str) -> str | None:
    loose = store / ref
    if loose.is_file():
        commit = loose.read_text(encoding="utf-8").strip()
        return commit if _COMMIT.fullmatch(commit) else None
    packed = store / "packed-refs"
    if packed.is_file():
        for line in packed.read_text(encoding="utf-8").splitlines():
            commit, _, name = line.partition(" ")
            if name == ref and _COMMIT.fullmatch(commit):
                return commit
    return None


def _commit_from_git(root: Path) -> str | None:
    # The caller's GIT_* variables may point git at another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", f"--git-dir={root / '.git'}", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = done.stdout.strip()
    return commit if done.returncode == 0 and _COMMIT.fullmatch(commit) else None
