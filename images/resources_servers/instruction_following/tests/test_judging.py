from __future__ import annotations

import time
from typing import Any

import pytest

from images.resources_servers.instruction_following.judging import (
    InstructionError,
    checked_arguments,
    judge,
    loose_variants,
)
from images.resources_servers.instruction_following.kinds import KINDS

NO_COMMA = ("punctuation:no_comma", {})
TITLE = ("detectable_format:title", {})
QUOTED = ("startend:quotation", {})

LENGTH = 50_000
# Texts that an expression which reads on from each place to the end takes minutes for.
LONG_ANSWERS = [
    sign * LENGTH for sign in ("a", "[", "<<", "*", "-", '"', "\n", " ", "* \n", "(", "Question 1", ".", "p. ")
]
ARGUMENTS: dict[str, Any] = {
    "N": 3, "capital_frequency": 3, "capital_relation": "less than", "end_phrase": "end", "first_word": "so",
    "forbidden_words": ["never"], "frequency": 3, "keyword": "never", "keyword1": "ash", "keyword2": "birch",
    "keyword3": "cedar", "keyword4": "dogwood", "keyword5": "elm", "keywords": ["never"], "language": "en",
    "let_frequency": 3, "let_relation": "less than", "letter": "q", "m": 3, "max_words": 9, "min_words": 3, "n": 3,
    "n_end": 3, "n_start": 1, "nth_paragraph": 2, "num_bullets": 3, "num_highlights": 3, "num_paragraphs": 3,
    "num_placeholders": 3, "num_sections": 3, "num_sentences": 3, "num_words": 3, "options": "yes/no",
    "percentage": 50, "postscript_marker": "P.S.", "prompt_to_repeat": "say it", "reference_text": "say it",
    "relation": "less than", "section_spliter": "Section", "sep": "-", "small_n": 3, "word": "never",
}  # fmt: skip
# Their libraries split texts at a pace of their own; the server bounds the time they may take.
BY_NLTK = {
    "change_case:capital_word_frequency", "format:title_case", "length_constraints:number_sentences",
    "words:keywords_specific_position", "words:start_verb", "words:words_position",
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "instructions", "verdicts"),
    [
        ("It is.", [NO_COMMA, TITLE], [(True, True), (False, False)]),
        ("Sure, here it is:\nIt is.", [NO_COMMA], [(False, True)]),
        ("It is.\nIs that right, sir?", [NO_COMMA], [(False, True)]),
        ("Sure, here it is:\nIt is.\nIs that right, sir?", [NO_COMMA], [(False, True)]),
        ("Sure, sir.\n\nIt, is.\n\nIs that right, sir?", [NO_COMMA], [(False, False)]),
        ('**"It is."**', [QUOTED], [(False, True)]),
        ('Sure:\n\n**"It is."**', [QUOTED, NO_COMMA], [(False, True), (True, True)]),
        ("one, two", [NO_COMMA], [(False, False)]),
        ("", [NO_COMMA], [(False, False)]),
        (" \n\t\n", [NO_COMMA, ("format:sub-bullets", {})], [(False, False), (False, False)]),
        ("***\n***", [("format:sub-bullets", {})], [(False, False)]),
        ("\ud800 a\udfff", [NO_COMMA, ("count:numbers", {"N": 0})], [(True, True), (True, True)]),
    ],
)
def test_verdicts(answer: str, instructions: list[Any], verdicts: list[Any]) -> None:
    assert judge(answer, instructions) == verdicts


def test_the_variants_of_a_loose_verdict() -> None:
    assert loose_variants("a*\nb\n\nc*") == ["a\nb\n\nc", "b\n\nc", "a\nb", "b", "b\n\nc*", "a*\nb"]
    assert loose_variants("one line") == []
    assert loose_variants("*one*") == ["one"]


@pytest.mark.parametrize(
    ("kind", "given", "path", "words"),
    [
        (
            "keywords:existance",
            {},
            ("instruction_id_list",),
            "no kind 'keywords:existance'; nearest: keywords:existence",
        ),
        ("", {}, ("instruction_id_list",), "there is no kind ''"),
        ("count:numbers", {}, ("kwargs", "N"), "count:numbers takes N: Field required"),
        ("count:numbers", {"N": None}, ("kwargs", "N"), "Field required"),
        ("count:numbers", {"N": 1.5}, ("kwargs", "N"), "integer"),
        ("count:numbers", {"N": -1}, ("kwargs", "N"), "greater than or equal to 0"),
        ("count:numbers", {"N": 1, "M": 2}, ("kwargs", "M"), "not permitted"),
        ("count:words_japanese", {"N": 0}, ("kwargs", "N"), "greater than or equal to 1"),
        ("punctuation:no_comma", {"x": 1}, ("kwargs", "x"), "takes no arguments"),
        ("keywords:existence", {"keywords": []}, ("kwargs", "keywords"), "at least 1 item"),
        ("keywords:existence", {"keywords": ["a", " "]}, ("kwargs", "keywords", 1), "at least 1 character"),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": "at least"},
            ("kwargs", "letter"),
            "at most 1 character",
        ),
        (
            "length_constraints:number_words",
            {"num_words": 3, "relation": "more than"},
            ("kwargs", "relation"),
            "'at least' or 'less than'",
        ),
        ("language:response_language", {"language": "xx"}, ("kwargs", "language"), "'xx' is no language code"),
        ("ratio:stop_words", {"percentage": 101}, ("kwargs", "percentage"), "less than or equal to 100"),
    ],
)
def test_what_cannot_be_checked(kind: str, given: dict[str, Any], path: tuple[Any, ...], words: str) -> None:
    with pytest.raises(InstructionError) as caught:
        checked_arguments(kind, given)
    assert caught.value.path == path
    assert words in str(caught.value)


def test_null_arguments_count_as_not_given_and_whole_floats_as_integers() -> None:
    given = {"N": 4.0, "keyword": None, "relation": None}
    assert checked_arguments("count:numbers", given) == {"N": 4}
    assert checked_arguments("punctuation:no_comma", {"N": None}) == {}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - BY_NLTK))
def test_no_answer_takes_long(kind: str) -> None:
    wanted = KINDS[kind].arguments.model_fields
    instruction = (kind, checked_arguments(kind, {key: ARGUMENTS[key] for key in wanted}))
    for answer in LONG_ANSWERS:
        started = time.process_time()
        judge(answer[:LENGTH], [instruction])
        assert time.process_time() - started < 20, answer[:20]
