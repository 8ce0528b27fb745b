"""Calls that nobody has to wait for: a Ctrl-C need not, nor the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def start(
    name: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> tuple[Future[_T], threading.Thread]:
    """Run ``call`` in a daemon thread. An executor's threads would be waited for when the process ends."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:  # handed over to whoever asks for the result
            future.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return future, thread
