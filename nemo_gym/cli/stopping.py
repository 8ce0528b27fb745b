"""Ctrl-C, SIGTERM and SIGHUP: the work under way is wound up, and the exit code says which it was."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end. ``exit_code`` is 128 plus its number, 130 for Ctrl-C."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


def _raise(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(signal_number)


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Inside the block these signals raise ``Stopped`` in the main thread. One that is ignored stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in handled:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def run_async(main: Coroutine[Any, Any, T], drain: Callable[[], bool] | None = None) -> T:
    """Run ``main`` in an event loop of its own; a signal cancels it, and raises ``Stopped`` once it has ended.

    ``drain`` is asked first when the signal is a Ctrl-C. When it says True, ``main`` is about to come to an end by
    itself, and only the next signal cancels it.
    """
    import asyncio

    stopped: list[int] = []

    async def cancellable() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def stop(number: int) -> None:
            stopped.append(number)
            if number == signal.SIGINT and drain is not None and drain():
                return
            if task is not None:
                task.cancel()

        handled = [number for number in _SIGNALS if signal.getsignal(number) is _raise]
        for number in handled:
            loop.add_signal_handler(number, stop, number)
        try:
            return await main
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
                signal.signal(number, _raise)

    try:
        result = asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not stopped:
            raise
    else:
        if not stopped:
            return result
    raise Stopped(stopped[0])
