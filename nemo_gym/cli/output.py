"""What a person or a program gets to see: data on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from nemo_gym.errors import ConfigError, NemoGymError
from nemo_gym.rollouts.journal import whole_file

if TYPE_CHECKING:
    from rich.console import Console

_stderr_console: Console | None = None


class StdoutClosedError(Exception):
    """Whoever read our output has stopped reading, as ``head`` does."""


class StdoutFailedError(NemoGymError):
    """What there is to say cannot be written: the disk is full, or there is no stdout."""


class _Stderr(io.TextIOBase):
    """Stderr as it is when something is written. What it does not take is let go: to tell something never fails."""

    def isatty(self) -> bool:
        return is_terminal(sys.stderr)

    def write(self, text: str) -> int:
        # a live display stands in the place of stderr, and writes here
        stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        if stream is not None:
            with contextlib.suppress(ValueError):  # closed
                try:
                    stream.write(text)
                    stream.flush()
                except OSError:
                    _discard(stream)
        return len(text)


_STDERR = _Stderr()


@contextlib.contextmanager
def stderr_there() -> Iterator[None]:
    """Where this process was started without a stderr it has one inside the block, which leads nowhere.

    Whatever is opened first would take its place otherwise, and get what is meant for it.
    """
    if sys.stderr is not None:
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def stdout_kept_for_data() -> contextlib.AbstractContextManager[Any]:
    """What is printed meanwhile goes to stderr, also by the processes of prepare scripts."""
    return contextlib.redirect_stdout(sys.stderr)


def emit(text: str) -> None:
    """Write a text, and a newline, to stdout."""
    emit_exactly(text + "\n")


def emit_exactly(text: str) -> None:
    """Write a text to stdout as it is, in UTF-8 where the terminal's encoding does not have it.

    Half a character, as file names and models' answers may hold one, is escaped.
    """
    if sys.stdout is None:
        raise StdoutFailedError("cannot write to stdout: it is closed.")
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode("utf-8", errors="backslashreplace"))
        sys.stdout.flush()
    except BrokenPipeError as error:
        _discard(sys.stdout)
        raise StdoutClosedError from error
    except OSError as error:
        _discard(sys.stdout)
        raise StdoutFailedError(f"cannot write to stdout: {error.strerror or error}.") from error


def _discard(stream: TextIO) -> None:
    """Let what is still to be written there go: the interpreter flushes it as it ends, and must not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), stream.fileno())


def emit_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character
        text = json.dumps(value, indent=2, default=str)
    emit(text)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all. Half a character is escaped, as JSON and YAML have it."""
    if not path.name:
        raise ConfigError(f"Cannot write {path}: needed the name of a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            stream.write(text.encode(errors="backslashreplace"))
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror or error}.") from error


def note(text: str) -> None:
    """Tell a person something, on stderr; where there is none, nobody is told."""
    if _stderr_console is not None:
        _stderr_console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        print(text, file=_STDERR)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is looking at this stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def stderr_console() -> Console:
    """The one console for stderr, so that log lines and a progress display do not overwrite each other."""
    global _stderr_console
    if _stderr_console is None:
        from rich.console import Console

        _stderr_console = Console(file=cast("IO[str]", _STDERR))
    return _stderr_console


@contextlib.contextmanager
def logging_restored() -> Iterator[None]:
    """Undo at the end what ``configure_logging`` does inside, for callers that go on living."""
    logger = logging.getLogger("nemo_gym")
    before = list(logger.handlers), logger.propagate, logger.level
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])


def configure_logging(verbose: bool) -> None:
    """Send this package's log to stderr: as it stands, or with rich when a person is looking."""
    logger = logging.getLogger("nemo_gym")
    handler: logging.Handler
    if is_terminal(sys.stderr):
        from rich.logging import RichHandler

        handler = RichHandler(console=stderr_console(), show_path=False, show_level=verbose, log_time_format="[%X]")
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(_STDERR)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)


def emit_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """A table on stdout: drawn with rich on a terminal, aligned text elsewhere."""
    if is_terminal(sys.stdout):
        _draw_table(headers, rows, title)
    else:
        emit(format_table(headers, rows, title=title))


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> str:
    """A table as aligned plain text; columns of numbers stand right."""
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [_is_numeric(column[1:]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip()

    lines = [title] if title else []
    return "\n".join([*lines, line(headers), line(["-" * width for width in widths]), *map(line, rows)])


def format_pairs(pairs: Mapping[str, str]) -> str:
    """Names and values below each other, the values aligned."""
    width = max(map(len, pairs), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs.items())


def _draw_table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for place, header in enumerate(headers):
        numeric = _is_numeric([row[place] for row in rows])
        table.add_column(Text(header), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=sys.stdout)
    with console.capture() as drawn:
        console.print(table)
    emit_exactly(drawn.get())


def _is_numeric(cells: Sequence[str]) -> bool:
    def is_number(cell: str) -> bool:
        try:
            float(cell.removesuffix("%"))
        except ValueError:
            return False
        return True

    return bool(cells) and all(is_number(cell) for cell in cells if cell)
