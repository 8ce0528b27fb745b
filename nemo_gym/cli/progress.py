"""How far a run is: a live display for a person, plain lines for a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from nemo_gym.cli.output import is_terminal, note, stderr_console
from nemo_gym.rollouts.report import RunTally

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_LINE_EVERY_S: Final = 10.0
_DISPLAY_EVERY_S: Final = 0.5
_BAR_WIDTH: Final = 20
_WIDE: Final = 110
_SEPARATOR: Final = "  "
_ENOUGH_TO_TELL: Final = 5  # rollouts, before the time left is worth telling


class Progress(Protocol):
    """Something that shows a tally."""

    def update(self) -> None:
        """Show the tally as it is now."""


class Pace:
    """How fast a tally grows, from now on: what earlier segments of a run have brought does not count."""

    def __init__(self, tally: RunTally) -> None:
        self._tally = tally
        self._started = time.monotonic()
        self._done = tally.done
        self._tokens = tally.token_totals["output_tokens"]

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def figures(self, elapsed_s: float | None = None) -> list[str]:
        """The tally in short texts, the more telling ones first."""
        tally = self._tally
        elapsed_s = self.elapsed_s if elapsed_s is None else elapsed_s
        per_s = 1 / elapsed_s if elapsed_s > 0 else 0.0
        done_since = tally.done - self._done
        rate = done_since * per_s
        parts = [f"{rate:.1f}/s", _mean(tally), f"{tally.failures} failed"]
        if rate > 0 and done_since >= _ENOUGH_TO_TELL and tally.done < tally.total:
            parts.append(f"{_duration((tally.total - tally.done) / rate)} left")
        if tally.token_totals:
            came, went = tally.token_totals["output_tokens"], tally.token_totals["input_tokens"]
            speed = (came - self._tokens) * per_s
            parts.append(f"tokens {_short(went)} in {_short(came)} out ({_short(speed)}/s)")
        if tally.retries:
            parts.append(f"{tally.retries} tried again")
        return parts


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
        self._pace = Pace(tally)
        self._last_s = 0.0

    def update(self) -> None:
        elapsed_s = self._pace.elapsed_s
        if elapsed_s - self._last_s >= _LINE_EVERY_S or self._tally.done == self._tally.total:
            self._last_s = elapsed_s
            note(", ".join([f"{self._tally.done}/{self._tally.total} rollouts", *self._pace.figures(elapsed_s)]))


def fitting(parts: Sequence[str], width: int) -> str:
    """As many of the parts, from the first on, as ``width`` columns hold: at least the first, cut to that width."""
    shown = parts[0][: max(width, 0)]
    for part in parts[1:]:
        if len(shown) + len(_SEPARATOR) + len(part) > width:
            break
        shown += _SEPARATOR + part
    return shown


@contextlib.contextmanager
def _live(tally: RunTally) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    console = stderr_console()
    before: list[ProgressColumn] = [MofNCompleteColumn()]
    if console.width >= _WIDE:
        before.insert(0, BarColumn(bar_width=_BAR_WIDTH))
    taken = 2 * len(str(tally.total)) + 1 + len("0:00:00") + 2 + (_BAR_WIDTH + 1 if len(before) > 1 else 0)
    display = RichProgress(*before, _figures_column(Pace(tally), taken), TimeElapsedColumn(), console=console)
    with display:
        bar = display.add_task("rollouts", total=tally.total, completed=tally.done)

        class Live:
            def update(self) -> None:
                display.update(bar, completed=tally.done)

        yield Live()


def _figures_column(pace: Pace, taken: int) -> ProgressColumn:
    """The figures, made anew as often as the display looks, so that a rollout costs nothing here."""
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    console = stderr_console()

    class Figures(ProgressColumn):
        max_refresh = _DISPLAY_EVERY_S

        def render(self, task: Task) -> Text:
            return Text(fitting(pace.figures(), console.width - taken))

    return Figures(table_column=Column(no_wrap=True))


def _mean(tally: RunTally) -> str:
    so_far = tally.running.mean_reward()
    if so_far is None:
        return "no reward yet"
    interval = so_far.interval
    bounds = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    return f"mean reward {so_far.mean:.3f}{bounds}"


def _short(count: float) -> str:
    """A count in a few characters: 950, 12.3k, 4.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
