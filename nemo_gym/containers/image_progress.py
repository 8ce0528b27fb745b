"""How far builds and pulls are, told to whoever shows it; where nobody does, the log has a line now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self


@dataclass(frozen=True, slots=True)
class ImageProgress:
    """One image under way. ``how_far`` is for people, and empty at first: ``step 3/9``, ``42 % (63.0 of 150.0 MB)``."""

    image: str
    repository: str
    doing: Literal["building", "pulling"]
    how_far: str = ""
    has_ended: bool = False


Observer = Callable[[ImageProgress], None]
"""Called in the threads that build and pull, for one image in order: its beginning, each step, its end."""

_observers: list[Observer] = []


@contextlib.contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Tell ``observer`` of every image of this process until the block ends."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def is_observed() -> bool:
    """Whether somebody shows the progress, so that lines of it in the log would only repeat that."""
    return bool(_observers)


class Telling:
    """Tells of one image from the ``with`` block's beginning to its end."""

    def __init__(self, image: str, repository: str, doing: Literal["building", "pulling"]) -> None:
        self.repository = repository
        self._progress = ImageProgress(image, repository, doing)

    def __enter__(self) -> Self:
        self._send(self._progress)
        return self

    def __exit__(self, *error: object) -> None:
        self._send(replace(self._progress, has_ended=True))

    def tell(self, how_far: str) -> None:
        """The image is that far now."""
        self._send(replace(self._progress, how_far=how_far))

    def _send(self, progress: ImageProgress) -> None:
        for observer in list(_observers):
            observer(progress)
