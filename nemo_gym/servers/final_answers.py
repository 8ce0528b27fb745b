r"""Where a model's final answer stands in what it wrote: ``\boxed{...}``, ``#### 42``, "The answer is 42.", or the end.

Finding and judging are two things: what is found here is text, and whether it is right is for the verifier to say.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

AnswerForm = Literal["boxed", "hashes", "stated", "last"]
ALL_FORMS: Final[tuple[AnswerForm, ...]] = ("boxed", "hashes", "stated", "last")

LONGEST_PLACE: Final = 2000
"""Characters that are read for one answer. Without a bound, a text of a thousand openings is read a thousand times."""

MOST_BOXES: Final = 100

LONGEST_TEXT: Final = 200_000
"""Characters from a text's end in which a final answer is looked for."""

ANSWER_WORDS: Final = (
    "(?:answer|antwort|antwoord|réponse|reponse|respuesta|resposta|risposta|odpowiedź|svar|cevap|jawaban|đáp án|ответ"
    "|відповідь|答案|答え|回答|정답|답|उत्तर|الإجابة|الجواب)"
)
"""The word "answer" in several languages, for a regular expression that ignores case."""

# More of it than any table, ruler or indent holds.
_RUN = re.compile(r"[\W_]{129,}")

_BOX = re.compile(r"\\(?:boxed|fboxed|fbox|framebox)\s*(?:\{|(?=[^\s{\\])|\s)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_HASHES = re.compile(r"^[^\S\n]*#{4,}\s*(\S.*)$", re.MULTILINE)
# "#### Step 3: Add them", "#### 2. Conclude", "#### Final Answer": a heading of Markdown, and no answer.
_HEADING = re.compile(
    r"(?:[^\w\\]|_)*(?:\d+(?:[.):]\s|(?:st|nd|rd|th)\b)|(?!(?:sqrt|sin|cos|tan|log|exp)(?![^\W\d_]))[^\W\d_]{3,}"
    r"|[^\W\d_]{1,2}\s+[^\W\d_]{2,})"
)
_STATED = re.compile(
    rf"""
    (?<![^\W_]) {ANSWER_WORDS} (?:\ +to\ [^.:\n]{{1,60}}?)? ["'*_`)\]]* \s*
    (?: (?: is | are | was | would\ be | should\ be | must\ be | will\ be | ist | lautet | est | es | é | è ) \b
      | [:：=] | 是 | 은 | は )
    [\s*_]* (?: (?:therefore|thus|then|simply|exactly)\b ,? \s* | [:：] \s* )?
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What stands between dollars or in \(...\), on one line. Dollars around "5 + " in "$5 + $6" are money.
_MATH = re.compile(
    r"\$\$?(?![\s$])([^$\n]{0,1999}?[^$\n\s=+*/<−-])\$\$?(?!\d)|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]"
)
_NUMBER_FORM = r"[-+−]?\s?[$€£]?\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+(?:\.\d+)?)?(?:\s?\\?%)?"
_NUMBER = re.compile(rf"(?<![\w.]){_NUMBER_FORM}")
# The result of a computation: a number after an equals sign, with nothing left to compute.
_RESULT = re.compile(rf"=\s*({_NUMBER_FORM})(?!\d|\.\d|\s*[-+*×^]|\s*/\s*[\d$])")
# A full stop that ends a sentence, and not the decimals of a number.
_SENTENCE_END = re.compile(r"[.!?。](?=\s|$)")
_FORMAL = re.compile(r"[-+−]?[\s$€£*_`(\[{\\]*(?:\d|\\|[A-Za-z]\s*(?:\([^()]*\)\s*)?=)")


class Boxed(NamedTuple):
    """What a box holds, and where it begins and ends. ``closed`` is false where the text breaks off inside it."""

    start: int
    end: int
    content: str
    closed: bool = True


def boxed_contents(text: str) -> Iterator[Boxed]:
    r"""What stands in the last ``MOST_BOXES`` of ``\boxed{...}`` and its like, nested braces included, in order."""
    for opening in deque(_BOX.finditer(text), maxlen=MOST_BOXES):
        place = text[opening.end() : opening.end() + LONGEST_PLACE]
        if not opening[0].endswith("{"):
            token = re.match(r"\s*([^\s$\\{}.,;]+)", place)
            if token is not None:
                yield Boxed(opening.start(), opening.end() + token.end(), token[1])
            continue
        depth = 1
        for brace in _BRACE.finditer(place):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                yield Boxed(opening.start(), opening.end() + brace.end(), place[: brace.start()])
                break
        else:
            yield Boxed(opening.start(), opening.end() + len(place), place, closed=False)


def without_long_runs(text: str) -> str:
    """The text with 128 characters left of each longer run that has no letter or digit, its first and last 64.

    Expressions that look for an answer may try each length of a run at each of its places.
    """
    return _RUN.sub(lambda run: run[0][:64] + run[0][-64:], text)


def find_final_answer(
    text: str, *, several: bool = False, forms: Sequence[AnswerForm] = ALL_FORMS
) -> tuple[str | None, AnswerForm | None]:
    """The final answer in a text, and the form it was found in: the first of ``forms`` that is there, its last place.

    With ``several``, boxes that follow one another in the same sentence are taken together, joined by commas. A last
    box that never closes is no answer, and nothing before it is: the text was cut off where it was to be given.
    """
    text = without_long_runs(text[-LONGEST_TEXT:])
    boxes = list(boxed_contents(text))
    if boxes and not boxes[-1].closed:
        return None, None
    for form in forms:
        answer = _last_box(text, boxes, several) if form == "boxed" else _FINDERS[form](text)
        if answer:
            return answer, form
    return None, None


def _last_hashes(text: str) -> str | None:
    found = (answer.rstrip() for answer in reversed(_HASHES.findall(text)))
    return next((answer for answer in found if _HEADING.match(answer) is None), None)


def _last_box(text: str, boxes: Sequence[Boxed], several: bool) -> str | None:
    boxes = [box for box in boxes if box.closed and box.content.strip()]
    if not boxes:
        return None
    together = [boxes[-1]]
    for box in reversed(boxes[:-1] if several else []):
        between = text[box.end : together[0].start]
        if len(between) > _LONGEST_GAP or "\n\n" in between or _SENTENCE_END.search(between):
            break
        together.insert(0, box)
    return ", ".join(box.content.strip() for box in together)


_LONGEST_GAP: Final = 60


_MOST_STATED: Final = 100


def _last_stated(text: str) -> str | None:
    for match in reversed(deque(_STATED.finditer(text), maxlen=_MOST_STATED)):
        place = text[match.end() : match.end() + LONGEST_PLACE].lstrip()
        field = _value_of_field(place) if _FIELD.search(match[0]) is not None else None
        value = field or _value_in(_DISPLAYED.sub("", place).split("\n", 1)[0])
        if value:
            return value
    return None


# Mathematics that is displayed begins on a line of its own.
_DISPLAYED = re.compile(r"^(?:\\\[|\$\$)[^\S\n]*\n\s*")
_FIELD = re.compile(r"\"\s*:\s*$")
_JSON = json.JSONDecoder(parse_int=str, parse_float=str)


def _value_of_field(place: str) -> str | None:
    """A text or number of JSON at the beginning of ``place``, as what ``"answer":`` has."""
    try:
        value, _ = _JSON.raw_decode(place) if re.match(r"[\"\d-]", place) else (None, 0)
    except ValueError:
        return None
    return value.strip() if isinstance(value, str) else None


def _value_in(place: str) -> str | None:
    """The value in what follows "the answer is": all of it where it looks like one, else the mathematics in it."""
    end = _SENTENCE_END.search(place)
    sentence = (place[: end.start()] if end is not None else place).strip(" \t*_`\"'“”")
    if _FORMAL.match(sentence):
        return sentence
    formulas = [next(part for part in m.groups() if part is not None) for m in _MATH.finditer(sentence)]
    numbers = [match[0] for match in _NUMBER.finditer(sentence)]
    return ", ".join(formulas) or next(iter(numbers[-1:]), None)


def _last_value(text: str) -> str | None:
    """The last formula of the last line, else the last result in it ("4 + 4 = 8"); else the last number of the text."""
    text = text.rstrip()
    line = text[-LONGEST_PLACE:].rsplit("\n", 1)[-1]
    formulas = [next(part for part in m.groups() if part is not None) for m in _MATH.finditer(line)]
    values = formulas or _RESULT.findall(line) or _NUMBER.findall(text[-LONGEST_PLACE:])
    return values[-1].strip() if values else None


_FINDERS: dict[AnswerForm, Callable[[str], str | None]] = {
    "hashes": _last_hashes,
    "stated": _last_stated,
    "last": _last_value,
}
