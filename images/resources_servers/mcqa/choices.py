"""The letter that an answer chooses, in the forms that models write."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Literal

from images.resources_servers.mcqa.several import JOINED, names_another
from images.resources_servers.mcqa.texts import (
    EDGE,
    LATEX,
    LETTER,
    Options,
    end_of_text,
    normal,
    only_one,
    option_of_text,
    plain_letters,
)
from nemo_gym.servers.final_answers import ANSWER_WORDS, LONGEST_PLACE, LONGEST_TEXT, boxed_contents, without_long_runs

AnswerFormat = Literal["regex", "boxed", "answer", "letter", "option_text"]
DEFAULT_FORMATS: tuple[AnswerFormat, ...] = ("boxed", "answer", "letter", "option_text")


def find_answer(
    text: str, options: Options, formats: Sequence[AnswerFormat] = DEFAULT_FORMATS, regex: str | None = None
) -> tuple[str | None, AnswerFormat | None]:
    """The letter that a text chooses, and the form it was found in.

    Within a form the last match counts. A lone letter that is not among the options is an answer that cannot be
    right: the search ends there without one, instead of taking an earlier letter that the model did not settle on.
    """
    text = plain_letters(without_long_runs(text[-LONGEST_TEXT:]))
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
    boxes = [(box, letter) for box in boxed_contents(text) if (letter := _choice_in(box.content, options)) is not None]
    if len(boxes) > 1:
        (first, one), (second, other) = boxes[-2:]
        if one in options and one != other and JOINED.fullmatch(text, first.end, second.start):
            return None
    return boxes[-1][1] or None if boxes else None


_LONE = re.compile(rf"{LETTER}\Z")

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
    \s+ is \s+ (?:the\s+|my\s+)? (?:correct|right|best|most\ accurate|(?<=the\ )answer) \b
    (?! \s+ (?:to|that|if|unless) \b | (?:\ +(?!because\b|since\b|as\b)\w+){0,8} \ +only \b | (?:\s+\w+)? [\s*_"]* \? )
    (?: (?: \s+ (?:answer|choice|option|one) \b )?
        (?P<ends> \s* (?:\Z|[^\w\s]|\n) | \s+ (?:because|since|as|due|given|and|so|here) \b ) )?
    """,
    re.VERBOSE,
)
# After a letter: the end, punctuation, a closing bracket, or a reason.
_LEADING = re.compile(
    rf"""
    [\s*_`"'“(\[{{$\\]* (?P<letter>{LETTER})
    (?: (?P<closed> [\s*_`]* [)\].:,;}}*"'”$<!?。–—] | \s+-+\s | (?=[\u3040-\u9fff\uac00-\ud7af]) )
      | \s+(?P<next>[^\s\w]*\w+) )
    """,
    re.VERBOSE,
)
_REASON = re.compile(r"[\s*_,]+(?:because|since|as|which|for|due|given)\b", re.IGNORECASE)
# What denies a statement that follows it in the same clause: "I don't think that", "Wrong".
_DENIED = re.compile(
    r"""
    (?<![a-z]) (?: not (?!\ (?:only|just|hard|difficult|surprising)) | cannot | never | no\ (?:one|way|reason) | nobody
        | nothing | unlikely | (?<!no\ )doubt(?:s|ful)? | wrong | incorrect\w* | false | untrue | falsche?n?
        | mauvaise | неверн\w+ | неправильн\w+ ) (?![a-z])
    | n['’]t\b | 错误 | 不正确 | 不是 | 不\Z | \b(?:if|whether|unless|suppose|assuming) (?:\ that)? (?:\ the)?
        (?:\ (?:correct|right|best|true|final))? \s*\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CLAUSE_END = re.compile(
    r"[,;:.!?()\n，；：。]|\b(?:so|thus|hence|therefore|but|and|because|since|then|means|while|whereas)\b",
    re.IGNORECASE,
)
_LONGEST_CLAUSE = 200


# "So B.", "Thus, (B)", "I think it's B": a conclusion that ends its line with the letter.
_CONCLUDED = re.compile(
    r"""
    (?: ^ | (?<=[.!?;,:]\ ) ) [\s*_]*
    (?: (?i:so|thus|hence|therefore|then|i\ (?:think|believe|guess)|i(?:['’]d|\ would)\ say|my\ guess\ is
        |it(?:['’]s|\ is|\ must\ be)|that(?:['’]s|\ is)) \b ,? \s* ){1,4}
    (?: (?i:the\ )? (?i:option|choice|letter) \s+ )? [(\[*_"`]* (?P<letter>[A-Z]) [)\]*_"`]* [.!]? [*_\s]* $
    """,
    re.VERBOSE | re.MULTILINE,
)


def _find_stated(text: str, options: Options, regex: str | None) -> str | None:
    found: list[tuple[int, str]] = []
    # Bounded, as everything that looks at each place: a model that repeats itself may state a hundred thousand.
    for match in reversed(deque(_STATED.finditer(text), maxlen=_MOST_PLACES)):
        if _is_denied(text, match.start()):
            continue
        letter = _choice_in(_place_after(text, match.end(), options), options)
        if letter is not None:
            found.append((match.end(), letter))
            break
    judged = [
        match
        for match in deque(_JUDGED.finditer(text), maxlen=_MOST_PLACES)
        if match["letter"] in options and not _is_denied(text, match.start())
    ]
    found += [(match.start(), match["letter"]) for match in judged if match["ends"] is not None]
    found += [(match.start(), match["letter"]) for match in _CONCLUDED.finditer(text) if match["letter"] in options]
    # "A is correct for other cities" says less than any other statement.
    return max(found or [(match.start(), match["letter"]) for match in judged], default=(0, None))[1] or None


def _is_denied(text: str, position: int) -> bool:
    clause = _CLAUSE_END.split(text[max(position - _LONGEST_CLAUSE, 0) : position])[-1]
    return _DENIED.search(clause) is not None


def _place_after(text: str, position: int, options: Options) -> str:
    """The line that an answer is to stand in; where it begins there, with the lines below it that are options too."""
    first, *others = text[position : position + LONGEST_PLACE].lstrip().split("\n")
    before = text[max(position - LONGEST_PLACE, 0) : text.find(first, position)].rsplit("\n", 1)[-1]
    further = takewhile(lambda line: _is_option(line, options), others) if not before.strip(EDGE) else ()
    return ", ".join([first, *further])


def _is_option(line: str, options: Options) -> bool:
    """Whether a line is a letter, or a letter and the text of its option, and nothing else."""
    plain = LATEX.sub("", line).strip(EDGE)
    return plain in options or (plain[:1] in options and not plain[end_of_text(plain, 1, options[plain[0]]) :])


_MOST_PLACES = 1000


def _last_choice(places: Sequence[str], options: Options) -> str | None:
    for place in reversed(places):
        letter = _choice_in(place, options)
        if letter is not None:
            return letter or None
    return None


_SEVERAL = ""


def _choice_in(place: str, options: Options) -> str | None:
    """The letter meant by what stands in an answer's place, whether or not it is an option.

    None when that is unclear, and ``_SEVERAL`` when it is more than one: an earlier answer no longer counts.
    """
    place = LATEX.sub("", place)
    plain = place.strip(EDGE)
    if plain in options:
        return plain
    same = option_of_text(place, options)
    if same is not None:
        return same
    if _LONE.match(plain):
        return plain.upper()
    leading = _LEADING.match(place)
    if leading is None:
        return None
    if names_another(place, leading.end("letter"), leading["letter"], options):
        return _SEVERAL
    letter = leading["letter"].upper()
    if letter not in options and _REASON.match(place, leading.end("letter")):
        return option_of_text(leading["letter"], options) or letter
    if leading["closed"] is None and not _stands_alone(leading["letter"], leading["next"], options):
        return None
    return letter


def _stands_alone(letter: str, following: str, options: Options) -> bool:
    """Whether a letter before a further word is an answer, and not the word "a" or "I"."""
    if _REASON.match(f" {following}"):
        return True
    return letter.isupper() and letter not in "AI" and letter in options


_OPTION = re.compile(r"(?:option|choice|letter)\s+[(\[]?(?=\w{1,2}\W*$)", re.IGNORECASE)
_LINE_LETTER = re.compile(rf"[\s*_`\"'>#-]*[(\[]?({LETTER})[)\].:*_`]+(?:\s|$)")


def _find_letter(text: str, options: Options, regex: str | None) -> str | None:
    """A letter that is the whole answer or a whole line, or that a line begins with ("C) Paris")."""
    whole = _OPTION.sub("", text.strip(EDGE))
    lone: set[str] = set()
    for line in reversed(text.splitlines()):
        plain = _OPTION.sub("", LATEX.sub("", line).strip(EDGE))
        if _LONE.match(plain) and (plain.isupper() or plain.isdigit() or plain == whole):
            if plain.upper() not in options and lone:
                break
            if plain not in options and option_of_text(plain, options) is not None:
                return None
            lone.add(plain.upper())
        elif lone and plain:
            break
    if lone:
        return lone.pop() if len(lone) == 1 else None
    leading = _line_letters(text, options)
    if len(leading) != 1:
        # Lines that begin with different letters list the options instead of choosing one.
        return None
    letter, match = leading.popitem()
    return None if names_another(match.string, match.end(1), match[1], options) else letter


def _line_letters(text: str, options: Options) -> dict[str, re.Match[str]]:
    """The options' letters that lines begin with, and where they last do."""
    found = (_LINE_LETTER.match(line) for line in text.splitlines())
    return {match[1].upper(): match for match in found if match and match[1].upper() in options}


def _find_option_text(text: str, options: Options, regex: str | None) -> str | None:
    """The one option whose whole text is said: in the text, else in its last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(_line_letters(text, options)) > 1:
        lines = [line for line in lines if not _LINE_LETTER.match(line)]
    if not lines:
        return None
    return _only_mentioned("\n".join(lines), options) or _only_mentioned(lines[-1], options)


def _only_mentioned(text: str, options: Options) -> str | None:
    whole = option_of_text(text, options)
    if whole is not None:
        return whole
    haystack = f" {normal(_BULLET.sub('', text))} "
    sentences = {normal(sentence) for sentence in re.split(r"[.!?;\n]+|,\s", text)}
    by_needle: dict[str, list[str]] = {}
    for letter, option in options.items():
        by_needle.setdefault(normal(option), []).append(letter)
    mentioned: list[str] = []
    # Longer texts first, each taken out where it was found: "Paris, Texas" is no mention of "Paris".
    for needle in sorted(filter(None, by_needle), key=len, reverse=True):
        if len(needle) <= _SHORT_WORD and needle.isalpha():
            # "No", "yes", "all": too common inside of sentences to mean the option.
            if needle in sentences:
                mentioned += by_needle[needle]
            continue
        # "-3.5" is no mention of "3.5".
        unsigned = r"(?<! [-+√^<>≤≥≠±÷×])" if needle[0].isdigit() else ""
        said = re.compile(rf"{_NOT_DENIED}{unsigned} {re.escape(needle)}(?= )")
        if said.search(haystack):
            mentioned += by_needle[needle]
            haystack = said.sub(" \0", haystack)
    return only_one(mentioned, options)


_SHORT_WORD = 3
_NOT_DENIED = "".join(
    f"(?<! {words})"
    for words in (
        "not",
        "never",
        "isn t",
        *(f"{wrong} answer{verb}" for wrong in ("wrong", "incorrect") for verb in ("", " is")),
    )
)
_BULLET = re.compile(r"^[ \t]*[-+*>•][ \t]+", re.MULTILINE)


_FINDERS: dict[AnswerFormat, Callable[[str, Options, str | None], str | None]] = {
    "regex": _find_by_regex,
    "boxed": _find_boxed,
    "answer": _find_stated,
    "letter": _find_letter,
    "option_text": _find_option_text,
}
