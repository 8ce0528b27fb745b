"""Calls in the background give their result or error, and keep nobody waiting."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from nemo_gym.containers import background


def test_result_and_error() -> None:
    future, thread = background.start("adding", lambda a, *, b: a + b, 1, b=2)
    assert future.result(5) == 3
    thread.join(5)
    assert thread.name == "adding"
    failing, _ = background.start("failing", int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(5)


def test_the_process_ends_without_it() -> None:
    program = "import time; from nemo_gym.containers import background; background.start('x', time.sleep, 60)"
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert time.monotonic() - began < 20
