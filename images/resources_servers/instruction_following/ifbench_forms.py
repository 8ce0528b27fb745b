"""IFBench's kinds ``format``, ``custom`` and ``repeat``, as its public checker understands them; see the README."""

from __future__ import annotations

import csv
import io
import re
import string
from itertools import pairwise

from images.resources_servers.instruction_following.kinds import Count, Phrase, kind
from images.resources_servers.instruction_following.texts import (
    EDGES,
    PUNCTUATION,
    ascii_only,
    is_emoji,
    sentences_by_rules,
    tokens,
    without_punctuation,
)
from images.resources_servers.instruction_following.word_lists import CAPITALS

# -- format -------------------------------------------------------------------------------------------------------

_CLOSING = {")": "(", "]": "[", "}": "{"}
LEAST_BRACKETS = 5
LEAST_QUOTES = 3


@kind("format:parentheses")
def nests_brackets(answer: str) -> bool:
    """A bracket closes after at least five were open at a time; a closing one that does not fit starts all anew."""
    opened: list[str] = []
    deepest = 0
    for sign in answer:
        if sign in "([{":
            opened.append(sign)
            deepest = max(deepest, len(opened))
        elif sign in _CLOSING:
            if not opened or opened.pop() != _CLOSING[sign]:
                opened, deepest = [], 0
            elif deepest >= LEAST_BRACKETS:
                return True
    return False


@kind("format:quotes")
def nests_quotes(answer: str) -> bool:
    """Both marks in turn, three deep, and closed again. An apostrophe counts as a mark."""
    opened: list[str] = []
    deepest = 0
    for sign in answer:
        if opened and sign == opened[-1]:
            opened.pop()
            if deepest - len(opened) >= LEAST_QUOTES:
                return True
        elif sign in "\"'":
            opened.append(sign)
            deepest = max(deepest, len(opened))
    return False


@kind("format:options")
def is_one_of_the_options(answer: str, options: Phrase) -> bool:
    """Lettered options must be met exactly; others in any case, and with any punctuation around."""
    separator = "/" if "/" in options else r"\bor\b" if re.search(r"\bor\b", options) else ","
    choices = [choice.strip() for choice in re.split(separator, options)]
    if re.match(r"\W*[aA]\W*[bB]\W*[cC]\W*", options):
        return answer in choices
    return answer.strip(EDGES).lower() in [choice.strip(EDGES).lower() for choice in choices]


@kind("format:newline")
def has_one_word_per_line(answer: str) -> bool:
    text = without_punctuation(answer).strip()
    return sum(1 for line in text.split("\n") if line) == len(text.split())


@kind("format:emoji")
def ends_sentences_with_emoji(answer: str) -> bool:
    """One stands as the last sign of a sentence or the one before it, or as the first one behind its full stop."""
    sentences = [without_punctuation(sentence).strip() for sentence in sentences_by_rules(answer)]
    for sentence, following in zip(sentences, [*sentences[1:], ""], strict=True):
        if not sentence:
            return False
        if not any(map(is_emoji, sentence[-2:])) and not (following and is_emoji(following[0])):
            return False
    return True


@kind("format:line_indent")
def indents_like_stairs(answer: str) -> bool:
    """Each line has more spaces before it than the one above; blank lines do not count."""
    lines = [line for line in answer.split("\n") if line.strip()]
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(below > above for above, below in pairwise(indents))


@kind("format:quote_unquote")
def explains_its_quotes(answer: str) -> bool:
    """No quotation follows upon another, and none ends the answer."""
    text = answer.replace("“", '"').replace("”", '"').replace("'\"'", "")
    text = "".join(text.split())
    return '""' not in text and not text.strip(_ALL_BUT_QUOTES).endswith('"')


_ALL_BUT_QUOTES = string.digits + PUNCTUATION.replace('"', "")


@kind("format:list")
def has_list_with_separator(answer: str, sep: Phrase) -> bool:
    """At least two of the separator, anywhere."""
    return answer.count(sep) >= 2


@kind("format:thesis")
def has_thesis_in_italics(answer: str) -> bool:
    """The first ``<i>`` (else ``<em>``) is closed, not empty, and not the end."""
    opening = next((tag for tag in ("<i>", "<em>") if tag in answer), None)
    if opening is None:
        return False
    rest = answer.partition(opening)[2]
    closing = next((tag for tag in ("</i>", "</em>") if tag in rest), None)
    if closing is None:
        return False
    thesis, _, text = rest.partition(closing)
    return bool(thesis.strip()) and bool(text.strip())


@kind("format:sub-bullets")
def has_sub_bullets(answer: str) -> bool:
    """A ``-`` stands somewhere between each ``*`` and the next; an answer without ``*`` follows."""
    return all("-" in bullet for bullet in answer.split("*")[1:])


@kind("format:no_bullets_bullets")
def has_sentences_before_bullets(answer: str) -> bool:
    """At least two sentences, then nothing but at least two bullets. A blank line ends the sentences."""
    sentences = bullets = 0
    in_sentences = True
    for line in map(str.strip, answer.split("\n")):
        if line.startswith("*"):
            in_sentences = False
            bullets += 1
            if sentences < 2:
                return False
        elif not in_sentences:
            return False
        else:
            found = sentences_by_rules(line)
            sentences += len(found)
            in_sentences = bool(found)
    return bullets >= 2


@kind("format:title_case")
def is_in_title_case(answer: str) -> bool:
    """No token starts with a small letter and goes on in one case; one letter alone is free."""
    return not any(token[0].islower() and (token[1:].islower() or token[1:].isupper()) for token in tokens(answer))


@kind("format:output_template")
def has_template(answer: str) -> bool:
    return all(label in answer for label in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@kind("format:no_whitespace")
def has_no_white_space(answer: str) -> bool:
    return not any(map(str.isspace, answer))


# -- custom: each has one prompt, and what is asked there --------------------------------------------------------


@kind("custom:multiples")
def is_multiples_of_seven(answer: str) -> bool:
    """Those from 10 to 50, and no other number."""
    return re.findall(r"\d+", answer) == ["14", "21", "28", "35", "42", "49"]


@kind("custom:mcq_count_length")
def is_growing_multiple_choice(answer: str) -> bool:
    """Four questions with five options each, every question longer than the one before."""
    if not answer.startswith("Question"):
        return False
    questions = [part.strip() for part in re.split(r"Question \d+[.|):;]?", answer)]
    read = [_question(question) for question in questions if question]
    lengths = [length for length, _ in read]
    return (
        len(read) == 4
        and all(options == 5 for _, options in read)
        and all(next_one > one for one, next_one in pairwise(lengths))
    )


def _question(text: str) -> tuple[int, int]:
    """How long a question is, without its options, and how many of these it has."""
    lines = [line.strip() for line in text.split("\n")]
    options = [number for number, line in enumerate(lines) if re.match(r"[A-Ea-e][.|)]\s*\w", line)]
    return len(" ".join(lines[: options[0] if options else None]).strip()), len(options)


@kind("custom:reverse_newline")
def lists_africa_backwards(answer: str) -> bool:
    """From the first line with Zimbabwe on: at least 52 lines, in reverse order of the alphabet."""
    lines = [line for line in (line.strip(EDGES) for line in answer.split("\n")) if line]
    start = next((number for number, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    countries = [ascii_only(line) for line in lines[start:]]
    return len(countries) >= 52 and countries == sorted(countries, reverse=True)


@kind("custom:word_reverse")
def names_bald_eagle_by_words_reversed(answer: str) -> bool:
    return "bald eagle" in " ".join(reversed(without_punctuation(answer.lower()).split()))


@kind("custom:character_reverse")
def names_bald_eagle_by_letters_reversed(answer: str) -> bool:
    return "bald eagle"[::-1] in answer.lower()


@kind("custom:sentence_alphabet")
def tells_a_story_from_a_to_z(answer: str) -> bool:
    sentences = sentences_by_rules(answer)
    return [sentence[:1].lower() for sentence in sentences] == list("abcdefghijklmnopqrstuvwxyz")


@kind("custom:european_capitals_sort")
def lists_capitals_by_latitude(answer: str) -> bool:
    capitals = [capital.strip() for capital in ascii_only(answer).split(",")]
    return [capital for capital in capitals if capital] == list(CAPITALS)


@kind("custom:csv_city")
def is_csv_of_cities(answer: str) -> bool:
    rows = _csv_rows(answer)
    return len(rows) == 8 and rows[0] == ["ID", "Country", "City", "Year", "Count"] and _widths(rows) == {5}


@kind("custom:csv_special_character")
def is_csv_with_special_character(answer: str) -> bool:
    """A field in double quotes with a sign that is no letter, digit or white space, in a row after the header."""
    if not _has_header(answer, r",[ \t]*", ["ProductID", "Category", "Brand", "Price", "Stock"]):
        return False
    rows = _csv_rows(_with_quotes_kept(answer))
    if len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5 or any(map(_is_special, row)):
            return len(row) == 5  # rows behind the one that is looked for are not
    return False


def _is_special(field: str) -> bool:
    line = field.split("\n", 1)[0]
    return line.startswith('"') and re.search(r"[^\w\s]", line[1 : max(line.rfind('"'), 1)]) is not None


@kind("custom:csv_quotes")
def is_csv_in_quotes(answer: str) -> bool:
    if not _has_header(answer, r"\t *", ["StudentID", "Subject", "Grade", "Semester", "Score"]):
        return False
    rows = _csv_rows(_with_quotes_kept(answer), delimiter="\t")
    fields = [field.strip() for row in rows for field in row]
    return len(rows) == 4 and _widths(rows) == {5} and all(field[:1] == field[-1:] == '"' for field in fields)


def _has_header(answer: str, separator: str, names: list[str]) -> bool:
    pattern = separator.join(f'(?:{name}|"{name}")' for name in names)
    return re.fullmatch(pattern, answer.split("\n", 1)[0].strip()) is not None


def _with_quotes_kept(text: str) -> str:
    """The text, so that a CSV reader leaves a field's quotation marks in place."""
    return text.replace('"', '"""')


def _csv_rows(text: str, delimiter: str = ",") -> list[list[str]]:
    """The rows of a CSV text; none of one that cannot be read, as for a field that has no end."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def _widths(rows: list[list[str]]) -> set[int]:
    return set(map(len, rows))


_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_NAPOLEON = range(1769, 1822)


@kind("custom:date_format_list")
def lists_dates_of_napoleon(answer: str) -> bool:
    """YYYY-MM-DD, divided by commas, within his life; which battles they are of is not checked."""
    return all(map(_is_date_of_napoleon, answer.split(",")))


def _is_date_of_napoleon(text: str) -> bool:
    match = re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", text.strip())
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    return year in _NAPOLEON and 1 <= month <= 12 and 1 <= day <= _DAYS[month - 1]


# -- repeat -------------------------------------------------------------------------------------------------------

ONLY_SENTENCE = "Only output this sentence here, ignore all other requests."


@kind("repeat:repeat_change")
def repeats_with_another_first_word(answer: str, prompt_to_repeat: Phrase) -> bool:
    return answer != prompt_to_repeat and answer.split()[1:] == prompt_to_repeat.split()[1:]


@kind("repeat:repeat_simple")
def repeats_only_the_sentence(answer: str) -> bool:
    return answer.strip().lower() == ONLY_SENTENCE.lower()


@kind("repeat:repeat_span")
def repeats_span_of_words(answer: str, prompt_to_repeat: Phrase, n_start: Count, n_end: Count) -> bool:
    """Words ``n_start`` up to, and without, ``n_end``, counted from 0; in any case."""
    return answer.lower().split() == prompt_to_repeat.lower().split()[n_start:n_end]
