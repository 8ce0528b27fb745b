"""The errors this package raises, and nothing else.

::

    NemoGymError
    ├── ConfigError                 a request that cannot be met as it stands: bad input, a taken port, no engine
    │   ├── EngineUnavailableError  no container engine answers
    │   ├── ImageError              an image cannot be built or pulled; carries the end of its log
    │   └── ServerStartError        a server died, is late, or is not the one expected
    ├── EngineError                 the engine refused a call (status and message as it gave them)
    │   ├── EngineNotFoundError     the thing named is not there (404)
    │   ├── PortTakenError          a host port is in use
    │   └── NoAddressRangeError     no address range is left for another network
    ├── TeardownError               something of a session is still on the engine after its teardown
    └── RolloutFailedError          a rollout gave no reward; carries the results that did arrive

``PreparationFailedError`` (a benchmark's own prepare script failed) stands in
``nemo_gym.environment.benchmark_preparation``: it is a ``RuntimeError`` with an exit code of its own.

Messages say what was needed, what was found, and what to type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NemoGymError(Exception):
    """The root of every error this package raises on purpose. Each travels between processes whole."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[NemoGymError], args: tuple[Any, ...], attributes: dict[str, Any]) -> NemoGymError:
    """An error as it was pickled: keyword-only arguments rule out the call that pickle makes by itself."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(NemoGymError):
    """A request that cannot be met as it stands; the message says what was needed, found, and what to type."""


class EngineUnavailableError(ConfigError):
    """No container engine answers."""


class ImageError(ConfigError):
    """An image cannot be built or pulled. ``log_tail`` is the end of what the engine printed."""

    def __init__(self, message: str, *, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


class ServerStartError(ConfigError):
    """A server died, is late, or is not the one expected.

    ``phase`` is one of ``create``, ``start``, ``ready`` and ``serving``; ``exit_code`` is None while the
    container lives; ``log_tail`` is redacted.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str,
        phase: str,
        exit_code: int | None = None,
        oom_killed: bool = False,
        log_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.server = server
        self.phase = phase
        self.exit_code = exit_code
        self.oom_killed = oom_killed
        self.log_tail = log_tail


class EngineError(NemoGymError):
    """The container engine refused a call. ``status`` is the HTTP status of its answer, or None."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineNotFoundError(EngineError):
    """The container, network or image named is not on the engine."""


class PortTakenError(EngineError):
    """A host port asked for is in use by a process or another container."""


class NoAddressRangeError(EngineError):
    """The engine has no address range left for another network."""


class TeardownError(NemoGymError):
    """Something of a session is still on the engine after its teardown; ``left`` names each piece."""

    def __init__(self, message: str, *, left: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.left = list(left)


class RolloutFailedError(NemoGymError):
    """A rollout gave no reward.

    ``repeat`` is the failed rollout's position among the task's repeats, ``server`` the server that failed or
    was being called, ``status`` its HTTP status (None when the connection broke), ``body_tail`` the end of its
    answer, and ``results`` one entry per repeat: the raw ``/run`` reply where one arrived, else None.
    """

    def __init__(
        self,
        message: str,
        *,
        task_id: str,
        repeat: int,
        server: str,
        status: int | None = None,
        body_tail: str = "",
        failure_class: str | None = None,
        results: Sequence[dict[str, Any] | None] = (),
    ) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.repeat = repeat
        self.server = server
        self.status = status
        self.body_tail = body_tail
        self.failure_class = failure_class
        self.results = list(results)
