"""What an answer says, without what stands around it, and the option whose text that is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache

Options = Mapping[str, str]
"""The text of each option by its letter, in upper case."""

# What may stand around an answer: Markdown, quotes, brackets, LaTeX.
EDGE = " \t\r\n*_`\"'“”‘’()[]{}<>$\\.,:;!#|"
LATEX = re.compile(r"\\(?:text(?:bf|rm|sf|it)?|math(?:rm|bf|sf|it)|boldsymbol|f?boxed|rm|bf)\b\s*|\\[()\[\]]")
LETTER = r"(?:[A-Za-z]|\d{1,2})"
_CLOSING_TAG = re.compile(r"</\w+>")
_AFTER_LETTER = re.compile(r"[\s)\].,:*_\"'“}{(\[–—-]*")


def option_of_text(said: str, options: Options) -> str | None:
    """The option whose text is said: just as it is, else but for what stands around it, else in words and numbers."""
    # What is much longer than every option need not be read.
    longest = 2 * max(map(len, options.values()), default=0) + 100
    sayings = [part for part in dict.fromkeys((said, _CLOSING_TAG.split(said)[0])) if len(part) <= longest]
    for reading in (str.strip, as_written, bare, normal):
        for wanted in map(reading, sayings):
            same = [letter for letter, text in options.items() if wanted and reading(text) == wanted]
            if same:
                return only_one(same, options)
    return None


def only_one(letters: Sequence[str], options: Options) -> str | None:
    """The first of letters of options that say the same; None where they do not, or there is none."""
    return letters[0] if len({options[letter] for letter in letters}) == 1 else None


def end_of_text(place: str, position: int, text: str) -> int:
    """Where an option's text ends that follows its letter; ``position`` where it does not follow."""
    text = LATEX.sub("", text).strip(EDGE).lower()
    match = _AFTER_LETTER.match(place, position)
    start = match.end() if match else position
    return start + len(text) if text and place[start : start + len(text)].lower() == text else position


# Signs that make another value of the same letters and digits.
_SIGNS = r"[%$€£<>^√π°](?=\s*\d)|%|[-+](?=\s*\d)|(?<![^\s(=])-(?=\w)|[+=×÷·±≤≥≠∪∩∧∨¬]"
_TOKEN = re.compile(rf"[^\W_]+(?:[.,/]\d+)*|{_SIGNS}")


def normal(text: str) -> str:
    """Lower case words and numbers with single spaces; signs that change a value stay."""
    return " ".join(_TOKEN.findall(text.lower().replace("−", "-").replace("–", "-")))


def as_written(text: str) -> str:
    return " ".join(LATEX.sub("", text).strip(" \t\r\n*_`\"'“”‘’$.,:;").split())


def bare(text: str) -> str:
    return " ".join(LATEX.sub("", text).strip(EDGE).split())


# Capitals of other alphabets that look like A, B, C, E, H: where one stands alone before a full stop or an end.
_LOOKALIKES = str.maketrans("АВСЕНΑΒΕΗ", "ABCEHABEH")
_LONE_LOOKALIKE = re.compile(r"(?<!\w)[АВСЕНΑΒΕΗ](?=[\s*_`\"']*(?:$|[).,:;\]}]))", re.MULTILINE)
_STYLED = ("<font>", "<wide>", "<circle>")


def plain_letters(text: str) -> str:
    """The text with plain letters for bold, wide, circled and look-alike ones, and without invisible characters."""
    if text.isascii():
        return text
    plain = "".join(map(_plain_character, text))
    return _LONE_LOOKALIKE.sub(lambda match: match[0].translate(_LOOKALIKES), plain)


@lru_cache(maxsize=4096)
def _plain_character(character: str) -> str:
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if category in ("Cf", "Zs"):
        return " " if category == "Zs" else ""
    same = unicodedata.normalize("NFKC", character)
    is_styled = unicodedata.decomposition(character).startswith(_STYLED)
    return same if is_styled and len(same) == 1 and same.isascii() and same.isalpha() else character
