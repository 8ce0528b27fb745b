"""One preparation of a data file at a time, across processes, and no reading while one is going on."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)


def lock_file(data_file: Path) -> Path:
    return data_file.with_name(f".{data_file.name}.lock")


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file at ``path``, waiting while another process or thread holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(f"Cannot write to {path.parent}, where {what} belongs: {error}.") from None
    try:
        _acquire(handle, fcntl.LOCK_EX, what)
        yield
    finally:
        os.close(handle)


@contextmanager
def open_prepared(data_file: Path) -> Iterator[BinaryIO]:
    """The prepared file, open for reading; waits for a preparation of it that is going on.

    Once open, the file stays whole: a preparation puts a new file in its place rather than changing it.
    """
    try:
        handle = os.open(lock_file(data_file), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        handle = None  # never prepared here, so there is no preparation to wait for
    try:
        if handle is not None:
            _acquire(handle, fcntl.LOCK_SH, str(data_file))
        try:
            stream = data_file.open("rb", buffering=1 << 20)
        except OSError as error:
            raise ConfigError(f"Cannot read the prepared data {data_file}: {error.strerror}.") from None
    finally:
        if handle is not None:
            os.close(handle)
    with stream:
        yield stream


def _acquire(handle: int, kind: int, what: str) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("Waiting for another process that is preparing %s.", what)
        fcntl.flock(handle, kind)
