"""Locks that are files: nobody is inside together with another who must not be, also when a file is removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nemo_gym.environment.data_lock import exclusive, in_use

Lock = Callable[[Path, str], AbstractContextManager[None]]


def is_free(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


@pytest.mark.parametrize("lock", [exclusive, in_use])
@pytest.mark.parametrize("made_again", [False, True])
def test_whoever_waited_while_the_folder_was_removed_keeps_the_next_one_out(
    tmp_path: Path, lock: Lock, made_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache" / ".x.lock"
    inside, leave = threading.Event(), threading.Event()

    def wait_and_hold() -> None:
        with lock(path, "it"):
            inside.set()
            assert leave.wait(30)

    caplog.set_level("INFO")
    with ThreadPoolExecutor(1) as pool:
        with exclusive(path, "it"):
            held = pool.submit(wait_and_hold)
            while "Waiting for another process that is busy with it" not in caplog.text:
                assert not held.done()
            shutil.rmtree(path.parent)
            if made_again:
                path.parent.mkdir()
                path.touch()
        try:
            assert inside.wait(30)
            assert not is_free(path)
        finally:
            leave.set()
        held.result(30)
    assert is_free(path)


def test_those_who_use_are_inside_together_and_keep_out_who_would_be_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with in_use(path, "it"), in_use(path, "it"):
        assert not is_free(path)
    assert is_free(path)


def test_what_cannot_be_written_to_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with in_use(tmp_path / "file" / "x.lock", "it"):
        pass


def test_a_wait_ends_when_it_is_stopped(tmp_path: Path) -> None:
    path, stopped = tmp_path / "x.lock", threading.Event()
    with exclusive(path, "it", stopped):
        stopped.set()
        with pytest.raises(CancelledError, match="The wait for it was stopped"), exclusive(path, "it", stopped):
            pass
    with exclusive(path, "it", threading.Event()):
        assert not is_free(path)
