"""The configuration this process runs with: what a prepare script sees, and the one being served.

Nothing in this package reads its settings from here; it exists for prepare scripts, which have no other way to
learn the caller's overrides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(eq=False)
class _Served:
    config: DictConfig


_planned: ContextVar[DictConfig | None] = ContextVar("nemo_gym_process_config", default=None)
# By process id, so that a forked worker does not inherit its parent's claim. setdefault and pop are atomic.
_served: dict[int, _Served] = {}


def get_process_config() -> DictConfig | None:
    """The configuration in force here: the one being planned in this context, else the one being served."""
    planned = _planned.get()
    if planned is not None:
        return planned
    served = _served.get(os.getpid())
    return served.config if served is not None else None


@contextmanager
def process_config(config: DictConfig, *, serving: bool = False) -> Iterator[DictConfig]:
    """``config`` as this process's configuration inside the block, and what was there before after it.

    While planning it is seen in the calling thread (or task) only, so that several threads may plan at once.
    ``serving=True`` sets it for the whole process; a second one meanwhile is a ``ConfigError``.
    """
    if serving:
        pid, own = os.getpid(), _Served(config)
        if _served.setdefault(pid, own) is not own:
            raise ConfigError(
                "This process already serves a benchmark. Leave that `with serve_benchmark(...)` block first, or "
                "serve the second one from another process."
            )
        try:
            yield config
        finally:
            if _served.get(pid) is own:
                del _served[pid]
        return
    before = _planned.get()
    _planned.set(config)
    try:
        yield config
    finally:
        _planned.set(before)
