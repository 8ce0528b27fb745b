"""Files of one JSON object a line, appended to as things happen, mended after a death, and put in order at the end."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from nemo_gym.errors import ConfigError, NemoGymError

Key = tuple[int, ...]
_BLOCK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a journal: where it begins, how many bytes it has, and what it holds."""

    place: int
    length: int
    record: dict[str, Any]


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that is there whole or not at all: it takes the place of ``path`` when the block has ended."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as stream:
            yield stream
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


class Journal:
    """A file that lines are appended to, each handed to the operating system whole.

    ``lines`` are the key, place and length of those that stand in the file already and count; the rest of the file is
    dropped by ``finish``. It raises ``NemoGymError`` when the disk takes no more.
    """

    def __init__(self, path: Path, lines: list[tuple[Key, int, int]] | None = None) -> None:
        self._path = path
        self._lines = [] if lines is None else lines
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._end = os.fstat(self._file).st_size

    def add(self, key: Key, record: Mapping[str, Any]) -> None:
        """Append a record. ``key`` says where it stands once the file is in order."""
        line = encoded_line(record)
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)  # no part of a line stays, and there is room for a word of it
            raise NemoGymError(
                f"cannot write to {self._path}: {error.strerror or error}. What had arrived before is kept there; once "
                "there is room, the same command with --resume goes on."
            ) from error
        self._lines.append((key, self._end, len(line)))
        self._end += len(line)

    def close(self) -> None:
        """Give the file up. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def finish(self) -> None:
        """Put the lines in the order of their keys, by way of a file beside it that then takes its place."""
        self.close()
        ordered = sorted(self._lines)
        if ordered == self._lines and sum(length for _, _, length in ordered) == self._path.stat().st_size:
            return
        try:
            with self._path.open("rb") as unsorted, whole_file(self._path) as output:
                for _, place, length in ordered:
                    unsorted.seek(place)
                    output.write(unsorted.read(length))
                output.flush()
                os.fsync(output.fileno())
        except OSError as error:
            raise NemoGymError(
                f"cannot put {self._path} in order: {error.strerror or error}. Its lines are all there, in the order "
                "that they came in; once there is room, the same command with --resume goes on."
            ) from error


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a journal, one at a time; ``ConfigError`` names one that is no JSON object."""
    place = 0
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            record = _find_object(line)
            if record is None:
                raise ConfigError(
                    f"{path}, line {number}: needed a JSON object; found {line[:80]!r}. Something else has written to "
                    "this file. Take that line out, or start anew under another --output."
                )
            yield Line(place, len(line), record)
            place += len(line)


def mend_last_line(path: Path) -> int:
    """Cut off a last line that was written in part, and return how many bytes that were: 0 where none was.

    A line that lacks no more than its end of line gets it, and stays. A file that is not there needs no mending.
    """
    if not path.is_file():
        return 0
    with path.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        begin = _begin_of_last_line(stream, size)
        if begin == size:
            return 0
        stream.seek(begin)
        if _find_object(stream.read()) is not None:
            stream.write(b"\n")
            return 0
        stream.truncate(begin)
        return size - begin


def encoded_line(record: Mapping[str, Any]) -> bytes:
    """A record as a line."""
    # A lone surrogate is JSON, and not UTF-8: such a line is escaped whole.
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _begin_of_last_line(stream: Any, size: int) -> int:
    """Where what follows the last end of line begins: ``size`` when the file ends with one."""
    end = size
    while end > 0:
        begin = max(0, end - _BLOCK)
        stream.seek(begin)
        found = stream.read(end - begin).rfind(b"\n")
        if found >= 0:
            return int(begin + found + 1)
        end = begin
    return 0


def _find_object(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
