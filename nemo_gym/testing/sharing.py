"""Benchmarks that several tests of one process share: each served once, a few at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from nemo_gym.errors import ConfigError, NemoGymError
from nemo_gym.testing.benchmark_containers import BenchmarkContainers, ServedBenchmark

logger = logging.getLogger(__name__)


@dataclass
class _Served:
    benchmark: ServedBenchmark
    containers: ExitStack
    users: int = 0


@dataclass
class SharedBenchmarks:
    """Serves each request when it is first asked for, and keeps it for the next who asks for the same.

    At most ``at_once`` are served at the same time, unless more are in use: the one that has been idle longest makes
    room for the next. A request that could not be served fails again at once.
    """

    at_once: int = 2
    _served: dict[str, _Served] = field(default_factory=dict, init=False, repr=False)
    _failed: dict[str, Exception] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise ConfigError(f"At least one benchmark must be served at once; found {self.at_once}.")

    @contextmanager
    def served(self, containers: BenchmarkContainers) -> Iterator[ServedBenchmark]:
        """The benchmark, served while the block runs, and perhaps longer."""
        key = containers.key
        if key in self._failed:
            raise self._failed[key]
        # taken out and put in again: the order is that of the last use
        held = self._served.pop(key, None) or self._start(containers)
        self._served[key] = held
        held.users += 1
        try:
            yield held.benchmark
        finally:
            held.users -= 1

    def _start(self, containers: BenchmarkContainers) -> _Served:
        self._make_room()
        with ExitStack() as stack:
            try:
                benchmark = stack.enter_context(containers)
            except Exception as error:  # a Ctrl-C is no property of the request
                self._failed[containers.key] = error
                raise
            return _Served(benchmark, stack.pop_all())

    def _make_room(self) -> None:
        idle = [key for key, held in self._served.items() if not held.users]
        for key in idle[: max(0, len(self._served) - self.at_once + 1)]:
            self._served.pop(key).containers.close()

    def close(self) -> None:
        """Stop all. Raises what the first failure to do so was, after all were tried."""
        failures = []
        while self._served:
            _, held = self._served.popitem()
            try:
                held.containers.close()
            except NemoGymError as error:
                failures.append(error)
                logger.error("%s", error)
        if failures:
            raise failures[0]
