"""A teardown runs to its end whatever is typed, never hides what went wrong before it, and never hangs an exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from nemo_gym.deployment.launch import _finish
from nemo_gym.errors import TeardownError


def failing_stop() -> None:
    raise TeardownError("2 pieces are left")


def test_its_own_failure_is_raised() -> None:
    with pytest.raises(TeardownError, match="2 pieces are left"):
        _finish(failing_stop)


def test_its_failure_is_a_note_of_what_went_wrong_before() -> None:
    original = ValueError("the caller's own")
    _finish(failing_stop, original)
    assert original.__notes__ == ["2 pieces are left"]


class TestCtrlC:
    def stop(self) -> None:
        """Two Ctrl-C while it runs."""
        for _ in range(2):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        self.is_done = True

    def test_is_raised_once_all_is_removed(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            _finish(self.stop)
        assert self.is_done

    def test_of_a_start_that_was_interrupted_already_is_raised_by_that(self) -> None:
        _finish(self.stop, KeyboardInterrupt())
        assert self.is_done

    def test_wins_over_another_error(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            _finish(self.stop, ValueError())
        assert self.is_done


def test_no_thread_is_left() -> None:
    before = threading.enumerate()
    _finish(lambda: None)
    assert threading.enumerate() == before


def test_a_block_left_open_does_not_hang_the_end_of_the_interpreter() -> None:
    program = """
import contextlib
from nemo_gym.deployment.launch import _finish

@contextlib.contextmanager
def session():
    try:
        yield
    finally:
        _finish(lambda: print("stopped", flush=True))

left_open = session()
left_open.__enter__()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
