"""The engine calls that create a session's pieces, in threads that the session's end can wait for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from nemo_gym.errors import EngineUnavailableError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Creations:
    """Calls under way. A Ctrl-C interrupts whoever waits for one, and neither the call nor what the engine makes of it.

    ``may_appear_late`` is set once a call was given up while the engine, which did not answer in time, may go on
    with it: what it creates can appear at any moment.
    """

    def __init__(self, most: int, thread_name_prefix: str) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=thread_name_prefix)
        self.may_appear_late = False

    def submit(self, create: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Begin one call."""

        def noted() -> _T:
            try:
                return create(*args, **kwargs)
            except EngineUnavailableError:
                self.may_appear_late = True
                raise

        return self._pool.submit(noted)

    def close(self) -> None:
        """Begin no other, and wait for those that have begun. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
