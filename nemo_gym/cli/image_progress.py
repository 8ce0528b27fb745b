"""Images being built and pulled, drawn for a person on stderr: a line each, gone when it is done."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_gym.cli.output import is_terminal, stderr_console
from nemo_gym.containers.image_progress import ImageProgress, observed_by

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


@contextlib.contextmanager
def show_image_progress() -> Iterator[None]:
    """Draw what is built and pulled inside the block. Nothing where nobody looks: the log has its plain lines."""
    if not is_terminal(sys.stderr):
        yield
        return
    drawing = Drawing(stderr_console())
    try:
        with observed_by(drawing.show):
            yield
    finally:
        drawing.stop()


class Drawing:
    """A live display that is there as long as an image is under way, and leaves the terminal alone otherwise."""

    def __init__(self, console: Console) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._display = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            TextColumn("{task.fields[how_far]}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            expand=True,  # names get what the figures leave, and are cut off there
        )
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._is_over = False

    def show(self, progress: ImageProgress) -> None:
        """Draw an image as far as it is."""
        with self._lock:
            if progress.has_ended:
                self._remove(progress.image)
            elif progress.image in self._tasks:
                self._display.update(self._tasks[progress.image], how_far=progress.how_far)
            elif not self._is_over:
                what = f"{progress.doing} {progress.repository}"
                self._tasks[progress.image] = self._display.add_task(what, total=None, how_far=progress.how_far)
                self._display.start()

    def stop(self) -> None:
        """Give the terminal back, whatever is still under way."""
        with self._lock:
            self._is_over = True
            for image in list(self._tasks):
                self._remove(image)

    def _remove(self, image: str) -> None:
        task = self._tasks.pop(image, None)
        if task is None:
            return
        if not self._tasks:
            self._display.stop()
        self._display.remove_task(task)
