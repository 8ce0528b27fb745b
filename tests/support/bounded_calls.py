"""Functions that tests run in worker processes: some end well, most do not."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def double(value: Any) -> Any:
    return value * 2


def own_pid() -> int:
    return os.getpid()


def write_and_return(path: str, value: Any) -> Any:
    """Add a line to a file: a trace of which calls began, and in which order."""
    with open(path, "a", encoding="utf-8") as trace:  # noqa: PTH123
        trace.write(f"{value}\n")
    return value


def nap(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def power_tower() -> int:
    """Computes in C for hours, and takes no notice of a signal's handler in Python."""
    return len(str(9 ** (9**9)))


def eat_memory() -> int:
    return len(bytearray(1 << 40))


def die_by(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(code: int) -> None:
    os._exit(code)


def leave_at_once(*_: Any) -> None:
    os._exit(7)


def exit_politely() -> None:
    sys.exit(4)


def complain(text: str) -> None:
    raise LookupError(text)


class StubbornError(Exception):
    """Cannot be made again from its pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def complain_stubbornly() -> None:
    raise StubbornError("not ", "picklable")


def return_a_function() -> Any:
    return lambda: None
