"""What it means for a file to be the pinned one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nemo_gym.errors import ConfigError


class DownloadError(ConfigError):
    """A file could not be fetched, or is not the one that was pinned."""


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as hex digits."""
    with path.open("rb") as stream:
        digest: str = hashlib.file_digest(stream, "sha256").hexdigest()
    return digest
