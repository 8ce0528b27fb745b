"""The 25 kinds of IFEval (arXiv 2311.07911), as its public checker understands them; see the README for differences."""

from __future__ import annotations

import json
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from images.resources_servers.instruction_following.kinds import (
    Count,
    Ordinal,
    Phrase,
    Phrases,
    Relation,
    is_so_many,
    kind,
)
from images.resources_servers.instruction_following.texts import (
    language_of,
    sentences,
    tokens,
    word_count,
)
from images.resources_servers.instruction_following.word_lists import LANGUAGES


def _known_language(code: str) -> str:
    if code not in LANGUAGES:
        raise ValueError(
            f"{code!r} is no language code that can be detected; needed: one of {', '.join(sorted(LANGUAGES))}"
        )
    return code


Language = Annotated[str, AfterValidator(_known_language)]
Letter = Annotated[str, Field(min_length=1, max_length=1)]


# -- keywords -----------------------------------------------------------------------------------------------------


def _occurrences(phrase: str, answer: str) -> int:
    return sum(1 for _ in re.finditer(re.escape(phrase), answer, re.IGNORECASE))


@kind("keywords:existence")
def has_keywords(answer: str, keywords: Phrases) -> bool:
    return all(re.search(re.escape(keyword), answer, re.IGNORECASE) for keyword in keywords)


@kind("keywords:frequency")
def has_keyword_so_often(answer: str, keyword: Phrase, frequency: Count, relation: Relation) -> bool:
    return is_so_many(_occurrences(keyword, answer), relation, frequency)


@kind("keywords:forbidden_words")
def has_no_forbidden_word(answer: str, forbidden_words: Phrases) -> bool:
    """As whole words only: "them" does not contain "the"."""
    return not any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in forbidden_words)


@kind("keywords:letter_frequency")
def has_letter_so_often(answer: str, letter: Letter, let_frequency: Count, let_relation: Relation) -> bool:
    return is_so_many(answer.lower().count(letter.lower()), let_relation, let_frequency)


# -- language and case --------------------------------------------------------------------------------------------


@kind("language:response_language")
def is_in_language(answer: str, language: Language) -> bool:
    """An answer whose language cannot be told follows."""
    return language_of(answer) in (language, None)


@kind("change_case:english_capital")
def is_english_in_capitals(answer: str) -> bool:
    return answer.isupper() and language_of(answer) in ("en", None)


@kind("change_case:english_lowercase")
def is_english_in_lower_case(answer: str) -> bool:
    return answer.islower() and language_of(answer) in ("en", None)


@kind("change_case:capital_word_frequency")
def has_so_many_capital_words(answer: str, capital_frequency: Count, capital_relation: Relation) -> bool:
    """Tokens without a lower-case letter and with an upper-case one: "I" and "A" count too."""
    found = 0
    if any(map(str.isupper, answer)):
        for token in tokens(answer):
            found += token.isupper()
            if found >= capital_frequency:
                break
    return is_so_many(found, capital_relation, capital_frequency)


# -- length -------------------------------------------------------------------------------------------------------


@kind("length_constraints:number_words")
def has_so_many_words(answer: str, num_words: Count, relation: Relation) -> bool:
    return is_so_many(word_count(answer), relation, num_words)


@kind("length_constraints:number_sentences")
def has_so_many_sentences(answer: str, num_sentences: Count, relation: Relation) -> bool:
    found = 0
    for _ in sentences(answer):
        found += 1
        if found >= num_sentences:  # what follows cannot change the verdict
            break
    return is_so_many(found, relation, num_sentences)


@kind("length_constraints:number_paragraphs")
def has_so_many_paragraphs(answer: str, num_paragraphs: Count) -> bool:
    """Divided by ``***``. An empty one at either end does not count, and none may be empty between."""
    filled = [bool(part.strip()) for part in answer.split("***")]
    return all(filled[1:-1]) and sum(filled) == num_paragraphs


@kind("length_constraints:nth_paragraph_first_word")
def has_word_first_in_paragraph(
    answer: str, num_paragraphs: Ordinal, nth_paragraph: Ordinal, first_word: Phrase
) -> bool:
    """Divided by two line breaks. Empty ones are not counted, but the n-th is found with them."""
    parts = [part.strip() for part in answer.split("\n\n")]
    count = sum(1 for part in parts if part)
    if count != num_paragraphs or nth_paragraph > count or not parts[nth_paragraph - 1]:
        return False
    word = parts[nth_paragraph - 1].split(None, 1)[0].lstrip("'").lstrip('"')
    return re.split(r"[.,?!'\"]", word, maxsplit=1)[0].lower() == first_word.lower()


# -- content and format -------------------------------------------------------------------------------------------


@kind("detectable_content:number_placeholders")
def has_so_many_placeholders(answer: str, num_placeholders: Count) -> bool:
    """At least so many ``[...]``, each within one line."""
    return sum(map(_bracketed, answer.split("\n"))) >= num_placeholders


def _bracketed(line: str) -> int:
    found = end = 0
    while (start := line.find("[", end)) >= 0 and (end := line.find("]", start) + 1) > 0:
        found += 1
    return found


_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}


@kind("detectable_content:postscript")
def has_postscript(answer: str, postscript_marker: Phrase) -> bool:
    """Anywhere, in any case; in the two common markers a white space may follow a full stop."""
    pattern = _POSTSCRIPTS.get(postscript_marker) or re.escape(postscript_marker.lower())
    return re.search(pattern, answer.lower()) is not None


# A line's first sign and what follows it; a star needs another sign behind it, which may be a line break.
_BULLETS = (re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE), re.compile(r"^[^\S\n]*-", re.MULTILINE))


@kind("detectable_format:number_bullet_lists")
def has_so_many_bullets(answer: str, num_bullets: Count) -> bool:
    return sum(1 for bullet in _BULLETS for _ in bullet.finditer(answer)) == num_bullets


CONSTRAINED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@kind("detectable_format:constrained_response")
def is_one_of_the_answers(answer: str) -> bool:
    """One of three sentences stands in it, with whatever else."""
    return any(sentence in answer for sentence in CONSTRAINED_ANSWERS)


_HIGHLIGHTS = (re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*"))


@kind("detectable_format:number_highlighted_sections")
def has_so_many_highlights(answer: str, num_highlights: Count) -> bool:
    """At least so many ``*...*`` or ``**...**`` with something between, each within one line."""
    found = sum(1 for marks in _HIGHLIGHTS for match in marks.finditer(answer) if match[1].strip())
    return found >= num_highlights


@kind("detectable_format:multiple_sections")
def has_so_many_sections(answer: str, section_spliter: Phrase, num_sections: Count) -> bool:
    """At least so many of the splitter with a number behind it."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", answer)) >= num_sections


_FENCES = ("```json", "```Json", "```JSON", "```")


@kind("detectable_format:json_format")
def is_json(answer: str) -> bool:
    """JSON of any kind, bare or in a code fence."""
    text = answer.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


@kind("detectable_format:title")
def has_title(answer: str) -> bool:
    """``<<...>>`` within one line, with something between."""
    return any(map(_titled, answer.split("\n")))


def _titled(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start < end - 2 and bool(line[start : end + 2].lstrip("<").rstrip(">").strip())


# -- combinations, start and end, punctuation ---------------------------------------------------------------------


@kind("combination:two_responses")
def is_two_responses(answer: str) -> bool:
    """Two that differ, divided by ``******``; an empty one at either end does not count."""
    parts = [part.strip() for part in answer.split("******")]
    filled = [part for part in parts if part]
    return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


@kind("combination:repeat_prompt")
def repeats_prompt(answer: str, prompt_to_repeat: Phrase) -> bool:
    return answer.strip().lower().startswith(prompt_to_repeat.lower())


@kind("startend:end_checker")
def ends_with_phrase(answer: str, end_phrase: Phrase) -> bool:
    """In any case; quotation marks around the answer do not count."""
    return answer.strip().strip('"').lower().endswith(end_phrase.lower())


@kind("startend:quotation")
def is_quoted(answer: str) -> bool:
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@kind("punctuation:no_comma")
def has_no_comma(answer: str) -> bool:
    return "," not in answer
