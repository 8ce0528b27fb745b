"""The examples of README.md and docs/: read from the pages, and run as a reader would.

A page is worked through in a folder of its own, from top to bottom. A block with a title is a file, written there; a
block of ``bash`` is run, and what it exports holds for the next; one of ``python`` is run as a program. A block that is
not to be run says why in a comment before it: ``<!-- shown: the reason -->``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENDPOINT = "http://127.0.0.1:8000/v1"
"""The model endpoint of the examples."""

_BLOCK = re.compile(
    r"""(?:^<!--\ shown:\ (?P<shown>[^\n]+?)\ -->\n)?
        ^```(?P<language>[a-z]*)(?P<options>[^\n]*)\n
        (?P<text>.*?)
        ^```$""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_TITLE = re.compile(r'title="([^"]+)"')
_NEEDS_ENGINE = re.compile(
    r"gym (eval (run|aggregate|reverify)|env (?!resolve)|images )|served?_benchmark|BenchmarkContainers"
)
_GYM = re.compile(r"(?:^|[|;(]|\bdo\b)\s*(gym\s[^|>\n]*)", re.MULTILINE)
_BLOCK_TIMEOUT_S = 600
_STATE = ".exported"


@dataclass(frozen=True)
class Block:
    """A fenced block. ``title`` is the file that it stands for, ``shown`` why it is not run."""

    language: str
    text: str
    line: int
    title: str | None
    shown: str | None

    @property
    def needs_engine(self) -> bool:
        is_run = self.shown is None and self.language in ("bash", "python")
        return is_run and _NEEDS_ENGINE.search(self.text) is not None

    def commands(self) -> list[list[str]]:
        """The ``gym`` commands in it, as words."""
        joined = self.text.replace("\\\n", " ")
        lines = [line.partition(" #")[0] for line in joined.splitlines() if not line.lstrip().startswith("#")]
        return [shlex.split(command[1]) for command in _GYM.finditer("\n".join(lines))]


def pages() -> list[Path]:
    """README.md and every hand-written page."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return list(_blocks(text))


def _blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        title = _TITLE.search(found["options"])
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(found["language"], found["text"], line, title and title[1], found["shown"])


def needs_engine(page: Path) -> bool:
    return any(block.needs_engine for block in blocks_of(page))


def work_through(page: Path, folder: Path, replaced: Mapping[str, str] | None = None) -> int:
    """Do what the page says, in ``folder``; how many blocks were run. ``replaced`` are texts to put for the page's."""
    done = 0
    environ = environment(folder)
    for block in blocks_of(page):
        if block.shown is not None:
            continue
        text = block.text
        for old, new in (replaced or {}).items():
            text = text.replace(old, new)
        if block.title is not None:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif block.language == "bash":
            run_script(text, folder, environ, where=f"{name_of(page)}:{block.line}")
            done += 1
        elif block.language == "python":
            run_program(text, folder, environ, where=f"{name_of(page)}:{block.line}")
            done += 1
    return done


def environment(folder: Path) -> dict[str, str]:
    """As a reader has it: ``gym`` and ``python`` are those of the virtual environment."""
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "NEMO_GYM_TOKEN")}
    # no path of the checkout among the modules' but the package's own
    return {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "HOME": environ.get("HOME", "/")}


def run_script(text: str, folder: Path, environ: Mapping[str, str], *, where: str) -> str:
    """Run a block of shell; what it exports stays for those after it. Its standard output."""
    script = f"set -euo pipefail\n[ ! -f {_STATE} ] || . ./{_STATE}\n{text}\nexport -p > {_STATE}\n"
    return _run(["bash", "-c", script], folder, environ, where)


def run_program(text: str, folder: Path, environ: Mapping[str, str], *, where: str) -> str:
    """Run a block of Python as a program, with what the page has exported so far."""
    return run_script('python -c "$PROGRAM"', folder, {**environ, "PROGRAM": text}, where=where)


def _run(command: list[str], folder: Path, environ: Mapping[str, str], where: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_BLOCK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{where} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
