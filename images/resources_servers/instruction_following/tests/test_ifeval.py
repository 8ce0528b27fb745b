"""IFEval's kinds: what follows and what does not, for each form of their arguments."""

from __future__ import annotations

from typing import Any

import langdetect_rs
import pytest

from images.resources_servers.instruction_following import ifeval
from images.resources_servers.instruction_following.judging import checked_arguments
from images.resources_servers.instruction_following.kinds import KINDS
from images.resources_servers.instruction_following.texts import language_of
from images.resources_servers.instruction_following.word_lists import LANGUAGES

ENGLISH = "this is a sentence that is written in english, and so is the rest of it."
GERMAN = "Dies ist ein Satz auf Deutsch, und auch der Rest davon ist es."
HINDI = "यह हिन्दी में लिखा हुआ एक वाक्य है और बाकी भी।"


def at_least(**arguments: Any) -> dict[str, Any]:
    return {"relation": "at least", **arguments}


def less_than(**arguments: Any) -> dict[str, Any]:
    return {"relation": "less than", **arguments}


CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("keywords:existence", {"keywords": ["river"]}, ["The RIVER.", "rivers"], ["The rivet."]),
    ("keywords:existence", {"keywords": ["a+b", "c"]}, ["A+B and C"], ["a+b", "aab c"]),
    (
        "keywords:frequency",
        at_least(keyword=" as ", frequency=2),
        ["as As", "as big as", "asas"],
        ["as", "a s a s"],
    ),
    ("keywords:frequency", less_than(keyword="x", frequency=1), ["y"], ["x", "y X"]),
    ("keywords:frequency", at_least(keyword="(x)", frequency=1), ["(x)"], ["x"]),
    ("keywords:forbidden_words", {"forbidden_words": ["the", "a b"]}, ["them", "a  b"], ["THE", "see the.", "a b"]),
    (
        "keywords:letter_frequency",
        {"letter": "A", "let_frequency": 2, "let_relation": "at least"},
        ["Anna", "a A"],
        ["abc"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "at least"},
        ["# of #s", "##"],
        ["a # b", "hash hash hash"],
    ),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 1, "let_relation": "less than"}, ["bag"], ["bEg"]),
    ("language:response_language", {"language": "de"}, [GERMAN, "123 456"], [ENGLISH, HINDI]),
    ("language:response_language", {"language": "hi"}, [HINDI], [GERMAN]),
    ("change_case:english_capital", {}, [ENGLISH.upper()], [ENGLISH, "123", GERMAN.upper(), ENGLISH.title()]),
    ("change_case:english_lowercase", {}, [ENGLISH], [ENGLISH.upper(), "123", GERMAN.lower(), "I " + ENGLISH]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["NASA and I", "A. B."],
        ["NASA", "Nasa Esa", "none at all"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["NASA", "Nasa Esa", "nothing"],
        ["NASA and ESA", "NASA, ESA, JAXA"],
    ),
    ("length_constraints:number_words", at_least(num_words=3), ["one two three", "don't x"], ["one, two", "- - -"]),
    ("length_constraints:number_words", less_than(num_words=3), ["one-two"], ["one-two three"]),
    (
        "length_constraints:number_sentences",
        at_least(num_sentences=2),
        ["It rains. It pours.", "Who? Me!", "Dr. Who came. He went."],
        ["It rains", "Dr. Who came.", "1.5 of 2.5 litres.", "One\n\ntwo"],
    ),
    (
        "length_constraints:number_sentences",
        less_than(num_sentences=2),
        ["It rains.", "Mr. Smith came to tea."],
        ["It rains. It pours.", "One. Two. Three."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "a *** b", "***\na\n***\nb\n***"],
        ["a", "a\n\nb", "a\n***\n***\nb", "a\n***\nb\n***\nc"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        ["a\n\nthen b", 'a\n\n"Then," b', "a\n\nTHEN!", "a\n\nthen's b", "a\n\nthen b\n\n"],
        ["then a\n\nb", "a\nthen b", "a\n\nb\n\nthen c", "a\n\nthenb", "a\n\n(then) b", "a\n\n\n\nthen b"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "so"},
        ["So it is.\nAnd so on."],
        ["So it is.\n\nAnd so on.", "\n\nSo it is."],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] at [place]", "[][]", "[a [b] c] [d]"],
        ["[name]", "[na\nme] [place]", "[[name]]", "(name) (place)"],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["x\nP.S. y", "p. s. y"], ["PS y", "P.P.S y"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S y", "p. p. s"], ["P.S. y", "PPS"]),
    ("detectable_content:postscript", {"postscript_marker": "N.B."}, ["n.b. y"], ["nabla y"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n\n  - b", "* a\n- b\n** c **", "*a\n-b"],
        ["* a", "* a\n* b\n* c", "1. a\n2. b", "** a **\n** b **", "*\n* a"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well. My answer is maybe. Why?", " My answer is no."],
        ["My answer is yes", "my answer is no.", "yes"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**a** *b*", "**a** **b**"],
        ["*a*", "** ** *b*", "*a\nb* *c*", "__a__ __b__"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb", "SECTION1 SECTION2 SECTION3"],
        ["SECTION 1\na", "Section 1\nSection 2", "SECTION X SECTION Y", "SECTION  1 SECTION  2"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', "[1, 2]", "```json\n{}\n```", "```\n3\n```", '"text"', "```JSON\n{}```"],
        ["{a: 1}", "Here: {}", "```json\n{\n```", "{}\nDone.", "[" * 100_000, "9" * 5000],
    ),
    ("detectable_format:title", {}, ["<<Joy>>\nx", "a <<b>> c", "<<<a>>>"], ["<Joy>", "<<>>", "<<a\nb>>", "<< >>"]),
    (
        "combination:two_responses",
        {},
        ["a\n******\nb", "******a******b******"],
        ["a", "a ****** a", "a ****** b ****** c", "a *** b", "a ************ b"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": " Say it.\n"},
        ["Say it. It.", "\nSAY IT."],
        ["It. Say it.", '"Say it." It.'],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Is it?"},
        ["Yes. Is it?", 'Yes. "IS IT?"\n', "is it?"],
        ["Is it? Yes.", "Is it ?", "Is it?)"],
    ),
    ("startend:quotation", {}, ['"a"', ' "a" "b"\n', '""'], ["a", '"', '"a', "'a'", "“a”"]),
    ("punctuation:no_comma", {}, ["a; b", "a，b"], ["a, b"]),
]
FOLLOWING = [(kind, arguments, answer) for kind, arguments, answers, _ in CASES for answer in answers]
BREAKING = [(kind, arguments, answer) for kind, arguments, _, answers in CASES for answer in answers]


def follows(kind: str, arguments: dict[str, Any], answer: str) -> bool:
    return KINDS[kind].check(answer, **checked_arguments(kind, arguments))


@pytest.mark.parametrize(("kind", "arguments", "answer"), FOLLOWING)
def test_what_follows(kind: str, arguments: dict[str, Any], answer: str) -> None:
    assert follows(kind, arguments, answer) is True


@pytest.mark.parametrize(("kind", "arguments", "answer"), BREAKING)
def test_what_does_not(kind: str, arguments: dict[str, Any], answer: str) -> None:
    assert follows(kind, arguments, answer) is False


def test_each_of_the_25_kinds_is_tried() -> None:
    own = {name for name, kind in KINDS.items() if kind.check.__module__ == ifeval.__name__}
    assert len(own) == 25
    assert {kind for kind, *_ in CASES} == own


def test_a_language_is_the_same_each_time() -> None:
    mixed = f"{GERMAN} {ENGLISH}"
    assert len({language_of(mixed) for _ in range(20)}) == 1
    assert language_of("...") is None


def test_the_languages_are_those_that_can_be_detected() -> None:
    langdetect_rs.detect("any text, so that the profiles are there")
    assert set(langdetect_rs.detector_factory._factory.get_lang_list()) == LANGUAGES
