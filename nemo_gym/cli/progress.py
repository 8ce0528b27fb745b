"""How far a run is: a live display for a person, plain lines for a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Final, Protocol

from nemo_gym.cli.output import is_terminal, note, stderr_console
from nemo_gym.rollouts.report import RunTally

_LINE_EVERY_S: Final = 10.0


class Progress(Protocol):
    """Something that shows a tally."""

    def update(self) -> None:
        """Show the tally as it is now."""


@contextlib.contextmanager
def show_progress(tally: RunTally) -> Iterator[Progress]:
    """A display of ``tally`` on stderr, until the block ends."""
    if is_terminal(sys.stderr):
        with _live(tally) as progress:
            yield progress
    else:
        yield _Lines(tally)


class _Lines:
    """A line now and then, and one at the end."""

    def __init__(self, tally: RunTally) -> None:
        self._tally = tally
        self._started = time.monotonic()
        self._last = self._started

    def update(self) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY_S or self._tally.done == self._tally.total:
            self._last = now
            note(describe(self._tally, now - self._started))


def describe(tally: RunTally, elapsed_s: float) -> str:
    """The tally as one line."""
    rate = tally.done / elapsed_s if elapsed_s > 0 else 0.0
    parts = [
        f"{tally.done}/{tally.total} rollouts",
        f"{rate:.1f}/s",
        _mean(tally),
        f"{tally.failures} failed",
    ]
    if tally.retries:
        parts.append(f"{tally.retries} tried again")
    if rate > 0 and tally.done < tally.total:
        parts.append(f"{_duration((tally.total - tally.done) / rate)} left")
    return ", ".join(parts)


@contextlib.contextmanager
def _live(tally: RunTally) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    display = RichProgress(
        SpinnerColumn(),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        console=stderr_console(),
    )
    started = time.monotonic()
    with display:
        bar = display.add_task("rollouts", total=tally.total, figures="")

        class Live:
            def update(self) -> None:
                _, *figures = describe(tally, time.monotonic() - started).split(", ")
                display.update(bar, completed=tally.done, figures="  ".join(figures))

        yield Live()


def _mean(tally: RunTally) -> str:
    return "no reward yet" if tally.mean is None else f"mean reward {tally.mean:.3f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
