"""Which revision of which source an image is built from, as labels; asked of git when an image is built."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nemo_gym

REVISION = "org.opencontainers.image.revision"
VERSION = "org.opencontainers.image.version"

_GIT_TIMEOUT_S = 10.0


def source_labels(folder: Path | None) -> dict[str, str]:
    """This package's version and, where ``folder`` lies in a git checkout, its commit (``-dirty``: and changes)."""
    labels = {VERSION: nemo_gym.__version__}
    revision = None if folder is None else find_revision(folder)
    return labels if revision is None else {**labels, REVISION: revision}


def find_revision(folder: Path) -> str | None:
    """The commit that ``folder`` is checked out at; ``-dirty`` when what lies in it differs from it. None: no git."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", ".")
    if not commit or changes is None:
        return None
    return f"{commit}-dirty" if changes else commit


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no git, no checkout, or another user's
        return None
    return done.stdout.strip()
