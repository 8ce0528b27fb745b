"""A teardown runs to its end whatever is typed, never hides what went wrong before it, and never hangs an exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from nemo_gym.deployment import launch
from nemo_gym.deployment.launch import _finish, serve_config, start_detached
from nemo_gym.errors import TeardownError
from tests.unit.fake_engine import FakeEngine


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


class FakeSession:
    """One that starts and is handed over at once."""

    session_id = "0a1b2c3d4e"

    def __init__(self, *_: object, **__: object) -> None: ...

    def start(self, search_dirs: object) -> None: ...

    def hand_over(self) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize("log_dir", [None, "kept"])
def test_logs_that_a_detached_session_does_not_keep(
    log_dir: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch.DockerEngine, "connect", lambda *_: FakeEngine())
    monkeypatch.setattr(launch, "Session", FakeSession)
    config = {"m": {"responses_api_models": {"openai_model": {"entrypoint": "app.py"}}}, "nemo_gym_log_dir": log_dir}
    start_detached(config)
    with serve_config(config):
        pass
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    told = "a detached session's logs are not kept in kept: type `gym env logs 0a1b2c3d4e` before `gym env stop`"
    assert warnings == ([] if log_dir is None else [told])


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
