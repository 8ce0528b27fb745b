"""Multiple choice: find the letter that a model chose, and compare it with the right one."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from nemo_gym.servers.final_answers import ANSWER_WORDS, LONGEST_PLACE, LONGEST_TEXT, boxed_contents
from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings

AnswerFormat = Literal["regex", "boxed", "answer", "letter", "option_text"]
DEFAULT_FORMATS: tuple[AnswerFormat, ...] = ("boxed", "answer", "letter", "option_text")
Options = Mapping[str, str]  # the text of each option by its letter, in upper case


class Option(BaseModel):
    """One choice."""

    letter: str = Field(min_length=1)
    text: str


class Row(VerifyRequest):
    """What a row must carry. ``answer_regex`` goes before the server's own setting."""

    question: str
    options: list[Option] = Field(min_length=1)
    expected_answer: str
    answer_regex: str | None = None

    _regex_compiles = field_validator("answer_regex")(lambda value: _checked_regex(value))

    @field_validator("options")
    @classmethod
    def _letters_are_distinct(cls, options: list[Option]) -> list[Option]:
        letters = _letters(options)
        if len(set(letters)) != len(letters):
            raise ValueError(f"their letters are not distinct: {', '.join(letters)}")
        return options

    @field_validator("expected_answer")
    @classmethod
    def _answer_is_an_option(cls, answer: str, others: ValidationInfo) -> str:
        letters = _letters(others.data.get("options") or ())
        if letters and answer.strip().upper() not in letters:
            raise ValueError(f"{answer!r} is none of the options' letters {', '.join(letters)}")
        return answer

    def texts(self) -> Options:
        return dict(zip(_letters(self.options), (option.text for option in self.options), strict=True))

    def right_letter(self) -> str:
        return self.expected_answer.strip().upper()


def _letters(options: Iterable[Option]) -> list[str]:
    return [option.letter.strip().upper() for option in options]


class McqaSettings(ResourcesSettings):
    """Which forms of an answer are looked for, in order: the first that is found counts."""

    answer_formats: tuple[AnswerFormat, ...] = DEFAULT_FORMATS
    answer_regex: str | None = None

    _regex_compiles = field_validator("answer_regex")(lambda value: _checked_regex(value))


class Mcqa(ResourcesServer):
    """Reward 1.0 for the right letter, else 0.0."""

    settings: McqaSettings

    async def verify(self, row: Row) -> JsonDict:
        regex = row.answer_regex or self.settings.answer_regex
        formats: Sequence[AnswerFormat] = self.settings.answer_formats
        if regex is not None and "regex" not in formats:
            formats = ("regex", *formats)
        texts = row.texts()
        letter, form = find_answer(row.text(), texts, formats, regex)
        # Some questions have an option twice: both of its letters say the same.
        right = letter is not None and texts[letter] == texts[row.right_letter()]
        return {"reward": float(right), "extracted_answer": letter, "answer_format": form}

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        if replies:
            answered = sum(reply.get("extracted_answer") is not None for reply in replies)
            by_expected: dict[str, list[Any]] = {}
            for reply in replies:
                by_expected.setdefault(str(reply.get("expected_answer")), []).append(reply.get("extracted_answer"))
            metrics["agent_metrics"] |= {
                "answered_rate": answered / len(replies),
                "answer_formats": _counts(reply.get("answer_format") for reply in replies),
                "answers_by_expected": {expected: _counts(given) for expected, given in sorted(by_expected.items())},
            }
            metrics["key_metrics"]["answered_rate"] = answered / len(replies)
        return metrics


def _counts(values: Iterable[Any]) -> dict[str, int]:
    return dict(sorted(Counter("none" if value is None else str(value) for value in values).items()))


def _checked_regex(value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
    return value


def find_answer(
    text: str, options: Options, formats: Sequence[AnswerFormat] = DEFAULT_FORMATS, regex: str | None = None
) -> tuple[str | None, AnswerFormat | None]:
    """The letter that a text chooses, and the form it was found in.

    Within a form the last match counts. A lone letter that is not among the options is an answer that cannot be
    right: the search ends there without one, instead of taking an earlier letter that the model did not settle on.
    """
    text = _plain_letters(text[-LONGEST_TEXT:])
    for form in formats:
        letter = _FINDERS[form](text, options, regex)
        if letter is not None:
            return (letter, form) if letter in options else (None, None)
    return None, None


def _find_by_regex(text: str, options: Options, regex: str | None) -> str | None:
    if regex is None:
        return None
    # The first group where there is one; with several (alternatives), the one that took part.
    found = [next((g for g in m.groups() if g), "") if m.re.groups else m[0] for m in re.finditer(regex, text)]
    return _last_choice(found, options)


def _find_boxed(text: str, options: Options, regex: str | None) -> str | None:
    return _last_choice([box.content for box in boxed_contents(text)], options)


# Capitals of other alphabets that look like A, B, C, E, H: where one stands alone before a full stop or an end.
_LOOKALIKES = str.maketrans("АВСЕНΑΒΕΗ", "ABCEHABEH")
_LONE_LOOKALIKE = re.compile(r"(?<!\w)[АВСЕНΑΒΕΗ](?=[\s*_`\"']*(?:$|[).,:;\]}]))", re.MULTILINE)
_STYLED = ("<font>", "<wide>", "<circle>")


def _plain_letters(text: str) -> str:
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


# What may stand around an answer: Markdown, quotes, brackets, LaTeX.
_EDGE = " \t\r\n*_`\"'“”‘’()[]{}<>$\\.,:;!#|"
_LATEX = re.compile(r"\\(?:text(?:bf|rm|sf|it)?|math(?:rm|bf|sf|it)|boldsymbol|f?boxed|rm|bf)\b\s*|\\[()\[\]]")
_LETTER = r"(?:[A-Za-z]|\d{1,2})"
_LONE = re.compile(rf"{_LETTER}\Z")

_IS = r"is|was|would\ be|should\ be|must\ be|will\ be|ist|lautet|est|es|é|è"
_RIGHT_WORDS = r"correcta?|corretta|correcte|juste|exacte|certa"
# "Answer: C", "**Final answer:** (C)", "the correct option is C", "<answer>C", "I choose C". What follows on the
# line, or on the next one that is not empty, is the answer's place.
_STATED = re.compile(
    rf"""
    (?: (?<![A-Za-z])(?:{ANSWER_WORDS}|choice|option|solution|letter) [\ ]* (?:letter|choice|option|{_RIGHT_WORDS})?
        ["'*_`)\]|]* \s*
        (?: \b(?:{_IS})\b \s* [:*_]* | [:：=>]+ | -+>? | [–—→] | 是 | は | 은 )
      | ^ [\W_]* (?:(?:final|correct|my|the)\ +)* answer [*_`]*
        (?= [\ \t]*\n | [\ \t]+ ["'(\[*_`]* [A-Z0-9] \b ["')\]*_`.]* \s* $ )
      | \b(?:i|we) (?:['’]d|['’]ll|\ would|\ will)? \ +(?:choose|pick|select|go\ with)\b
      | 选择? | 選択?
      | \bans(?:\.|\s*:) | \b(?:correct|right)\s*[:：]
    )
    [\s*_]*
    (?: \b(?:therefore|thus|then|indeed|clearly|definitely|simply|actually|probably|most\ likely|likely) \b ,? \s* )?
    (?: \b(?:the\ +)? (?:option|choice|letter|answer) \b [\s:]* )?
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
# "(B) is the correct answer", "Option B is correct."
_JUDGED = re.compile(
    r"""
    (?<![\w'’]) (?<!\bnor\ ) (?<!\bor\ ) (?<!\band\ ) (?<!\bif\ ) (?<!\bwhether\ )
    (?: (?:[Oo]ption|[Cc]hoice|[Aa]nswer) \s+ )? [(\[*_"]* (?P<letter>[A-Z]|\d{1,2}) [)\]*_".:]*
    \s+ is \s+ (?:the\s+|my\s+)? (?:correct|right|best|most\ accurate|(?<=the\ )answer) \b (?!\s+(?:to|that|if)\b)
    """,
    re.VERBOSE,
)
# After a letter: the end, punctuation, a closing bracket, or a reason.
_LEADING = re.compile(
    rf"""
    [\s*_`"'“(\[{{$\\]* (?P<letter>{_LETTER})
    (?: (?P<closed> [\s*_`]* [)\].:,;}}*"'”$<!?。–—] | \s+-+\s | (?=[\u3040-\u9fff\uac00-\ud7af]) )
      | \s+(?P<next>[^\s\w]*\w+) )
    """,
    re.VERBOSE,
)
_REASONS = frozenset({"because", "since", "as", "which", "for", "due", "given"})
_ANOTHER = re.compile(
    rf"""
    [\s)\]*_."']* (?: / | , | & | \bor\b | \band\b ) [\s(\[*_"']* (?:option\s+)?
    ({_LETTER}) (?= [\s)\].,;*_"']* $ | [)\].,;] )
    """,
    re.IGNORECASE | re.VERBOSE,
)


# "So B.", "Thus, (B)", "I think it's B": a conclusion that ends its line with the letter.
_CONCLUDED = re.compile(
    r"""
    (?: ^ | (?<=[.!?;,:]\ ) ) [\s*_]*
    (?: (?i:so|thus|hence|therefore|then|i\ (?:think|believe|guess)|i(?:['’]d|\ would)\ say|my\ guess\ is
        |it(?:['’]s|\ is|\ must\ be)|that(?:['’]s|\ is)) \b ,? \s* )+
    (?: (?i:the\ )? (?i:option|choice|letter) \s+ )? [(\[*_"`]* (?P<letter>[A-Z]) [)\]*_"`]* [.!]? [*_\s]* $
    """,
    re.VERBOSE | re.MULTILINE,
)


def _find_stated(text: str, options: Options, regex: str | None) -> str | None:
    found: list[tuple[int, str]] = []
    # Bounded, as everything that looks at each place: a model that repeats itself may state a hundred thousand.
    for match in reversed(deque(_STATED.finditer(text), maxlen=_MOST_PLACES)):
        place = text[match.end() : match.end() + LONGEST_PLACE].lstrip().split("\n", 1)[0]
        letter = _choice_in(place, options)
        if letter is not None:
            found.append((match.end(), letter))
            break
    for pattern in (_JUDGED, _CONCLUDED):
        last = deque((match for match in pattern.finditer(text) if match["letter"] in options), maxlen=1)
        found += [(match.start(), match["letter"]) for match in last]
    return max(found)[1] if found else None


_MOST_PLACES = 1000


def _last_choice(places: Sequence[str], options: Options) -> str | None:
    for place in reversed(places):
        letter = _choice_in(place, options)
        if letter is not None:
            return letter
    return None


def _choice_in(place: str, options: Options) -> str | None:
    """The letter meant by what stands in an answer's place, whether or not it is an option; None when unclear."""
    place = _LATEX.sub("", place)
    plain = place.strip(_EDGE)
    if _LONE.match(plain):
        return plain.upper()
    said = _normal(re.split(r"</\w+>", plain)[0])
    same = [letter for letter, text in options.items() if _normal(text) == said and said]
    if len(same) == 1:
        return same[0]
    leading = _LEADING.match(place)
    if leading is None or _names_another(place, leading, options):
        return None
    letter = leading["letter"]
    if leading["closed"] is None and not _stands_alone(letter, leading["next"], options):
        return None
    return letter.upper()


def _stands_alone(letter: str, following: str, options: Options) -> bool:
    """Whether a letter before a further word is an answer, and not the word "a" or "I"."""
    if following.lower() in _REASONS:
        return True
    return letter.isupper() and letter not in "AI" and letter in options


def _names_another(place: str, leading: re.Match[str], options: Options) -> bool:
    """Whether a second option follows: "B or C" chooses neither."""
    second = _ANOTHER.match(place, leading.end("letter"))
    return second is not None and second[1].upper() in options and second[1].upper() != leading["letter"].upper()


_OPTION = re.compile(r"(?:option|choice|letter)\s+[(\[]?(?=\w{1,2}\W*$)", re.IGNORECASE)
_LINE_LETTER = re.compile(rf"[\s*_`\"'>#-]*[(\[]?({_LETTER})[)\].:*_`]+(?:\s|$)")


def _find_letter(text: str, options: Options, regex: str | None) -> str | None:
    """A letter that is the whole answer or a whole line, or that a line begins with ("C) Paris")."""
    for line in reversed(text.splitlines()):
        plain = _OPTION.sub("", _LATEX.sub("", line).strip(_EDGE))
        if _LONE.match(plain) and (plain.isupper() or plain.isdigit() or plain == _OPTION.sub("", text.strip(_EDGE))):
            return plain.upper()
    leading = _line_letters(text, options)
    # Lines that begin with different letters list the options instead of choosing one.
    return leading.pop() if len(leading) == 1 else None


def _line_letters(text: str, options: Options) -> set[str]:
    """The options' letters that lines begin with."""
    found = (_LINE_LETTER.match(line) for line in text.splitlines())
    return {match[1].upper() for match in found if match and match[1].upper() in options}


def _find_option_text(text: str, options: Options, regex: str | None) -> str | None:
    """The one option whose whole text is said: in the text, else in its last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(_line_letters(text, options)) > 1:
        lines = [line for line in lines if not _LINE_LETTER.match(line)]
    if not lines:
        return None
    return _only_mentioned("\n".join(lines), options) or _only_mentioned(lines[-1], options)


def _only_mentioned(text: str, options: Options) -> str | None:
    haystack = f" {_normal(text)} "
    sentences = {_normal(sentence) for sentence in re.split(r"[.!?;\n]+|,\s", text)}
    mentioned: set[str] = set()
    # Longer texts first, each taken out where it was found: "Paris, Texas" is no mention of "Paris".
    for letter, option in sorted(options.items(), key=lambda item: -len(item[1])):
        needle = _normal(option)
        if not needle:
            continue
        if len(needle) <= _SHORT_WORD and needle.isalpha():
            # "No", "yes", "all": too common inside of sentences to mean the option.
            if needle in sentences:
                mentioned.add(letter)
            continue
        said = re.compile(rf"(?<! not)(?<! never)(?<! isn t) {re.escape(needle)}(?= )")
        if said.search(haystack):
            mentioned.add(letter)
            haystack = said.sub(" \0", haystack)
    return mentioned.pop() if len(mentioned) == 1 else None


_SHORT_WORD = 3


def _normal(text: str) -> str:
    """Lower case words and numbers with single spaces; signs that change a number stay."""
    return " ".join(re.findall(r"[^\W_]+(?:[.,/]\d+)*|[%$€£+=<>^√π°−-](?=\s*\d)|%", text.lower().replace("−", "-")))


_FINDERS: dict[AnswerFormat, Callable[[str, Options, str | None], str | None]] = {
    "regex": _find_by_regex,
    "boxed": _find_boxed,
    "answer": _find_stated,
    "letter": _find_letter,
    "option_text": _find_option_text,
}


if __name__ == "__main__":
    raise SystemExit(run_server(Mcqa))
