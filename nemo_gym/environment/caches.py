"""What this package keeps on this machine to be faster the next time: which folders, how large, and their removal.

All of it is made again when it is needed. Results are no cache, and neither is the data of a checkout's benchmarks,
which lies beside them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nemo_gym.config.home import expanded
from nemo_gym.config.sources import install_root
from nemo_gym.containers.images import image_files
from nemo_gym.environment.downloads import cache_dir
from nemo_gym.errors import ConfigError

# A cache directory may be one that other programs use as well: only these folders of it are ours.
_OF_BENCHMARKS: Final = {
    "downloads": "files that prepare scripts fetched",
    "benchmarks": "data of installed benchmarks",
    "prepare-dependencies": "packages that prepare scripts import",
    "venvs": "environments of prepare scripts",
}


@dataclass(frozen=True, slots=True)
class Cache:
    """One folder, and what is in it. ``size_bytes`` counts the files' contents."""

    path: Path
    holds: str
    size_bytes: int


def find_caches(environ: Mapping[str, str], further: Sequence[Path] = ()) -> list[Cache]:
    """The caches there are: of benchmarks, in the cache directory and in ``further`` ones, and of image builds."""
    candidates = [
        (folder / name, holds)
        for folder in dict.fromkeys([cache_dir(), *(expanded(path, "--cache-dir").absolute() for path in further)])
        for name, holds in _OF_BENCHMARKS.items()
    ]
    files = image_files(install_root(), environ)
    candidates += [
        (files.log_folder, "logs of image builds"),
        (files.installed_folder, "lists of what is installed in images"),
        (files.lock_folder, "locks of image builds"),
    ]
    return [Cache(path, holds, _size(path)) for path, holds in candidates if path.is_dir()]


def remove_cache(cache: Cache) -> bool:
    """Remove the folder, and the one around it where that is empty then; False when a process is busy in it.

    Raises ``ConfigError`` when it cannot be removed.
    """
    with ExitStack() as held:
        if not all(_try_to_hold(lock, held) for lock in _locks(cache.path)):
            return False
        try:
            if cache.path.is_symlink():
                cache.path.unlink()
            else:
                shutil.rmtree(cache.path)
        except OSError as error:
            raise ConfigError(f"Cannot remove {error.filename or cache.path}: {error.strerror or error}.") from None
    with suppress(OSError):  # holds something else
        cache.path.parent.rmdir()
    return True


def _locks(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.lock")


def _try_to_hold(lock: Path, held: ExitStack) -> bool:
    """Whether nobody held the lock; then it is ours until ``held`` ends."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, or not ours to open: removing will say so
        return True
    held.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # gone meanwhile
            total += path.lstat().st_size if not path.is_dir() else 0
    return total
