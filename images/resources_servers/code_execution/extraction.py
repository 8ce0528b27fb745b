"""The program in a model's answer: a fenced block, a function amid prose, or the rest of a function that was begun.

Whatever it is, what comes back is a whole program that begins with what the prompt has before the function: imports,
and functions that it may call. None where nothing in the answer defines the function.
"""

from __future__ import annotations

import itertools
import re
import textwrap
import warnings
from collections.abc import Iterator
from typing import Final

LONGEST_TEXT: Final = 200_000
"""Characters that a program may have; also those at an answer's end in which one without a fence is looked for."""

_MOST_CUTS: Final = 100
_MOST_BLOCKS: Final = 10
_INDENT: Final = "    "
# A block that is never closed ends with the text: the answer was cut off in it.
_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_FUTURE = re.compile(r"^from __future__ import .*\n", re.MULTILINE)
_CODE_LINE = re.compile(r"(?:import|from|def|class|async def|@)\b|@|[A-Za-z_]\w*(?:\s*:[^=\n]+)?\s*=(?!=)")


def find_program(text: str, prompt: str, entry_point: str) -> str | None:
    """The program that ``text`` answers ``prompt`` with. ``prompt`` may be empty, or prose in comments.

    The last fenced block that defines ``entry_point`` counts, without what is no Python in it, such as an example that
    was cut off; else what the text before the first block defines, else the last block or the text as the body that
    continues the prompt.
    """
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n")
    # The indent of a body counts where it continues a function.
    bodies = [match[2] for match in _FENCED.finditer(text) if len(match[2]) <= LONGEST_TEXT]
    blocks = list(map(textwrap.dedent, bodies))
    preamble = preamble_of(prompt, entry_point)
    before = _FENCE.split(text, maxsplit=1)[0][-LONGEST_TEXT:]
    for defines in _definitions(entry_point):
        for block in reversed(blocks):
            if defines.search(block):
                return _after(preamble, block if parses(block) else _code_amid_prose(block, defines))
        if defines.search(before):
            return _after(preamble, _code_amid_prose(before, defines))
    if not _is_begun(prompt, entry_point):
        return None
    return next(filter(None, (_continued(prompt, body) for body in [*bodies[::-1][:_MOST_BLOCKS], before])), None)


def _definitions(entry_point: str) -> Iterator[re.Pattern[str]]:
    """What defines a function: ``def``, else an assignment. What was printed, ``name: 3``, is neither."""
    name = re.escape(entry_point)
    yield re.compile(rf"^(?:async\s+)?def\s+{name}\b", re.MULTILINE)
    yield re.compile(rf"^{name}\s*(?::[^=\n]+)?=(?!=)", re.MULTILINE)


def preamble_of(prompt: str, entry_point: str) -> str:
    """What stands in a prompt before the function that it begins; all of it where it begins none."""
    begun = _start_of(prompt, entry_point)
    before = prompt if begun is None else prompt[:begun]
    return before if not before or before.endswith("\n") else before + "\n"


def _after(preamble: str, code: str) -> str:
    """Both as one program: imports from ``__future__`` stand before all else."""
    features = _FUTURE.findall(code) if preamble.strip() else []
    return "".join(features) + preamble + (_FUTURE.sub("", code) if features else code)


def parses(source: str) -> bool:
    """Whether a text is Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes and the like, which are no errors
            # More than parsing: a `return` outside of a function is an error only here.
            compile(source, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _start_of(prompt: str, entry_point: str) -> int | None:
    found = re.search(rf"^(?:@.*\n)*(?:async\s+)?def\s+{re.escape(entry_point)}\b", prompt, re.MULTILINE)
    return None if found is None else found.start()


def _is_begun(prompt: str, entry_point: str) -> bool:
    return _start_of(prompt, entry_point) is not None


def _code_amid_prose(text: str, defines: re.Pattern[str]) -> str:
    """The longest run of lines around the last definition that is Python; all from there on where none is."""
    lines = text.split("\n")
    function = text[: max(match.start() for match in defines.finditer(text))].count("\n")
    first = function
    while first > 0 and lines[first - 1].startswith("@"):
        first -= 1
    starts = [index for index in range(first) if _CODE_LINE.match(lines[index])][-_MOST_CUTS:]
    for start in [*starts, first]:
        if not parses("\n".join(lines[start:first])):
            continue
        for end in _ends(lines, function + 1):
            source = "\n".join(lines[start:end])
            if parses(source):
                return source + "\n"
    return "\n".join(lines[first:]).rstrip() + "\n"


def _ends(lines: list[str], least: int) -> Iterator[int]:
    """Where code that begins before may end, the longest first: before lines that are not indented."""
    outer = [index for index in range(least, len(lines)) if lines[index][:1] not in ("", " ", "\t", ")", "]", "}")]
    yield len(lines)
    yield from outer[:_MOST_CUTS][::-1]


def _continued(prompt: str, text: str) -> str | None:
    """The prompt with ``text`` as the rest of its function, indented as it has to be."""
    text = text.strip("\n").rstrip()
    if not text.strip():
        return None
    begun = prompt if prompt.endswith("\n") else prompt + "\n"
    first, newline, rest = text.partition("\n")
    # As it is; without the indent of its first line, which chat templates and models strip; without any.
    bodies = [text, _INDENT + first.lstrip() + newline + rest, textwrap.indent(textwrap.dedent(text), _INDENT)]
    bodies = [body for body in bodies if body[:1].isspace()]
    whole = (begun + body + "\n" for body in bodies)
    cut = (
        begun + "\n".join(lines[:end]) + "\n" for lines in (b.split("\n") for b in bodies) for end in _ends(lines, 1)
    )
    return next(filter(parses, itertools.chain(whole, cut)), None)
