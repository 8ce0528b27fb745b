"""One preparation of a data file at a time, across processes and threads; nobody reads a file half done.

Beside a data file ``x.jsonl`` there may stand, all hidden: ``.x.jsonl.lock``, held during a preparation;
``.x.jsonl.<id>.partial``, what a preparation has written so far; and, for a prepare script that writes to
``x.jsonl`` itself, ``.x.jsonl.preparing`` and ``.x.jsonl.previous``, by which a later call knows that the script
was cut off, and has the file from before.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1


def lock_file(data_file: Path) -> Path:
    """The lock of a data file's preparation."""
    return data_file.with_name(f".{data_file.name}.lock")


def staged_file(data_file: Path) -> Path:
    """A fresh place beside the data file, for what takes its place when it is complete."""
    return data_file.with_name(f".{data_file.name}.{uuid.uuid4().hex}.partial")


def _previous(data_file: Path) -> Path:
    return data_file.with_name(f".{data_file.name}.previous")


def _marker(data_file: Path) -> Path:
    return data_file.with_name(f".{data_file.name}.preparing")


@contextmanager
def exclusive(path: Path, what: str, stopped: threading.Event | None = None) -> Iterator[None]:
    """Hold the lock file at ``path``, waiting while another process or thread holds it.

    Once ``stopped`` is set, a wait ends with ``CancelledError``.
    """
    try:
        handle = _hold(path, fcntl.LOCK_EX, what, stopped)
    except OSError as error:
        raise ConfigError(f"Cannot write to {path.parent}, which is needed for {what}: {error.strerror}.") from None
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def in_use(path: Path, what: str, stopped: threading.Event | None = None) -> Iterator[None]:
    """Hold the lock file at ``path`` together with others that use what it stands for, so that nobody removes it.

    Where there is none and none can be made, nobody can remove anything either.
    """
    try:
        handle = _hold(path, fcntl.LOCK_SH, what, stopped)
    except OSError:
        handle = -1
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _hold(path: Path, kind: int, what: str, stopped: threading.Event | None) -> int:
    """A handle that holds the lock file which stands at ``path`` now, made where there is none."""
    access = os.O_RDONLY if kind == fcntl.LOCK_SH else os.O_RDWR
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, access | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _acquire(handle, kind, what, stopped)
            held = _stands_at(handle, path)
        except BaseException:
            os.close(handle)
            raise
        if held:
            return handle
        os.close(handle)  # removed while this waited: to hold it keeps nobody out


def _stands_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def open_prepared(data_file: Path) -> Iterator[BinaryIO]:
    """The prepared file, open for reading; waits for a preparation of it that is going on.

    Once open, the file stays whole: a preparation puts a new file in its place rather than changing it.
    """
    try:
        handle = os.open(lock_file(data_file), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        handle = -1  # nothing was ever prepared here, so there is nothing to wait for
    try:
        if handle >= 0:
            _acquire(handle, fcntl.LOCK_SH, str(data_file), None)
        stream = open_data_file(data_file)
    finally:
        if handle >= 0:
            os.close(handle)
    with stream:
        yield stream


def open_data_file(data_file: Path) -> BinaryIO:
    """The prepared file, open for reading. Call with the lock held; a ``ConfigError`` says why there is none."""
    if _marker(data_file).exists():
        raise ConfigError(f"{data_file} is incomplete: its preparation was cut off. Prepare the benchmark again.")
    try:
        return data_file.open("rb", buffering=1 << 20)
    except FileNotFoundError:
        raise ConfigError(f"{data_file} does not exist: the benchmark's data has not been prepared.") from None
    except OSError as error:
        raise ConfigError(f"Cannot read the prepared data {data_file}: {error.strerror}.") from None


def _acquire(handle: int, kind: int, what: str, stopped: threading.Event | None) -> None:
    if _acquired(handle, kind):
        return
    logger.info("Waiting for another process that is busy with %s.", what)
    if stopped is None:
        fcntl.flock(handle, kind)
        return
    while not _acquired(handle, kind):
        if stopped.wait(_POLL_S):
            raise CancelledError(f"The wait for {what} was stopped.")


def _acquired(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def clear_leftovers(data_file: Path) -> None:
    """Undo what a preparation that was cut off has left. Call with the lock held."""
    for stale in data_file.parent.glob(f".{data_file.name}.*.partial"):
        stale.unlink(missing_ok=True)
    if _marker(data_file).exists():
        _restore(data_file)


@contextmanager
def written_in_place(data_file: Path) -> Iterator[None]:
    """For a script that writes to the data file itself: when it fails, the file is as it was before.

    Readers that have the earlier file open keep it, as the script gets a new one.
    """
    _marker(data_file).touch()
    if data_file.exists():
        data_file.replace(_previous(data_file))
    try:
        yield
    except BaseException:
        _restore(data_file)
        raise
    _previous(data_file).unlink(missing_ok=True)
    _marker(data_file).unlink(missing_ok=True)


def _restore(data_file: Path) -> None:
    data_file.unlink(missing_ok=True)
    if _previous(data_file).exists():
        _previous(data_file).replace(data_file)
    _marker(data_file).unlink(missing_ok=True)
