"""Pausing Python's garbage collector while many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search for reference cycles inside the block: at a million rows, it takes longer than making them.

    Rows have no cycles, and what nothing refers to is freed all the same. Several threads may be inside at once: the
    collector is on again when the first of them leaves, which costs the others time and nothing else.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
