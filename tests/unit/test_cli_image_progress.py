"""Images under way as a person sees them on a terminal, and as a log sees them."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from nemo_gym.cli import image_progress
from nemo_gym.cli.image_progress import Drawing, show_image_progress
from nemo_gym.containers.image_progress import ImageProgress, Telling, is_observed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, legacy_windows=False, color_system=None)


def drawn(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def frame(drawing: Drawing) -> list[str]:
    """The lines as they stand, without their spinners."""
    paper = Console(file=io.StringIO(), width=100)
    paper.print(drawing._display.get_renderable())
    return [" ".join(line.split()[1:]) for line in drawn(paper).splitlines()]


class TestDrawing:
    def test_a_line_each_until_it_is_done(self, console: Console) -> None:
        drawing = Drawing(console)
        one = ImageProgress("a/one:1", "a/one", "building")
        drawing.show(one)
        drawing.show(ImageProgress("b/two:1", "b/two", "pulling", "42 % (63.0 of 150.0 MB)"))
        drawing.show(ImageProgress("a/one:1", "a/one", "building", "step 3/9"))
        assert frame(drawing) == [
            "building a/one step 3/9 0:00:00",
            "pulling b/two 42 % (63.0 of 150.0 MB) 0:00:00",
        ]
        drawing.show(ImageProgress("a/one:1", "a/one", "building", has_ended=True))
        assert frame(drawing) == ["pulling b/two 42 % (63.0 of 150.0 MB) 0:00:00"]
        drawing.show(ImageProgress("b/two:1", "b/two", "pulling", has_ended=True))
        assert not drawing._display.live.is_started
        drawing.show(one)  # another one, later
        assert drawing._display.live.is_started
        drawing.stop()
        assert not drawing._display.live.is_started

    def test_it_leaves_the_terminal_as_it_was(self, console: Console) -> None:
        drawing = Drawing(console)
        drawing.show(ImageProgress("a/[red]:1", "a/[red]", "building", "step [bold]"))
        drawing.stop()
        text = drawn(console)
        assert "building a/[red] " in text
        assert " step [bold] " in text
        hidden, shown, erased = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"
        assert text.count(hidden) == text.count(shown) == 1
        assert text.rstrip().endswith(erased)
        drawing.show(ImageProgress("a/late:1", "a/late", "building"))
        assert drawn(console) == text

    def test_long_names_on_a_narrow_terminal(self) -> None:
        drawing = Drawing(Console(file=io.StringIO(), width=70))
        drawing.show(ImageProgress("x", "registry.example.com/a/long/path/server", "pulling"))
        drawing.show(ImageProgress("x", "", "pulling", "100 % (1063.0 of 1063.0 MB)"))
        paper = Console(file=io.StringIO(), width=70)
        paper.print(drawing._display.get_renderable())
        drawing.stop()
        (line,) = drawn(paper).splitlines()
        assert line[2:].rstrip() == "pulling registry.example.com/a/… 100 % (1063.0 of 1063.0 MB) 0:00:00"


class TestShowing:
    def test_on_a_terminal(self, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setattr(image_progress, "stderr_console", lambda: console)
        with show_image_progress():
            assert is_observed()
            with Telling("a/one:1", "a/one", "building") as telling:
                telling.tell("step 1/2")
        assert not is_observed()
        assert "building a/one" in drawn(console)

    def test_an_interrupt_gives_the_terminal_back(self, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setattr(image_progress, "stderr_console", lambda: console)
        abandoned = Telling("a/one:1", "a/one", "pulling")

        def interrupted() -> None:
            with show_image_progress():
                abandoned.__enter__()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert "\x1b[?25h" in drawn(console)

    def test_elsewhere_the_log_has_its_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with show_image_progress():
            assert not is_observed()
