"""Answers as models write them, and the letter that each chooses."""

from __future__ import annotations

import time

import pytest

from images.resources_servers.mcqa.choices import DEFAULT_FORMATS, find_answer

CITIES = {"A": "London", "B": "Berlin", "C": "Paris", "D": "Rome, Italy"}
SENTENCES = {
    "A": "A dog is an animal",
    "B": "There is no answer",
    "C": "I do not know",
    "D": "No",
    "E": "No one knows that",
}
NUMBERS = {"A": "3.5", "B": "-3.5", "C": "3.55", "D": "35%"}
SHORT_NUMBERS = {"A": "4", "B": "42", "C": "7", "D": "420"}
TERMS = {"A": "25 × 8", "B": "25 ÷ 8", "C": "(0, 1]", "D": "[0, 1)", "E": "x + y", "F": "x − y", "G": "–3", "H": "c"}
TEN = {letter: f"choice number {position}" for position, letter in enumerate("ABCDEFGHIJ")}

STATED = [
    ("boxed", "Therefore \\boxed{C}", "C"),
    ("boxed", "$\\boxed{\\text{C}}$", "C"),
    ("boxed", "\\[ \\boxed{\\mathrm{(C)}} \\]", "C"),
    ("boxed", "\\boxed{\\textbf{C}}.", "C"),
    ("boxed", "\\boxed{ C }", "C"),
    ("boxed", "\\boxed{C. Paris}", "C"),
    ("boxed", "\\boxed{C: Paris}", "C"),
    ("boxed", "\\boxed{Paris}", "C"),
    ("boxed", "\\boxed{\\text{Rome, Italy}}", "D"),
    ("boxed", "\\fbox{x} so \\boxed{c}", "C"),
    ("boxed", "First \\boxed{A}, no: \\boxed{B}", "B"),
    ("boxed", "The answer is A. \\boxed{B}", "B"),
    ("boxed", "\\\\boxed{B}", "B"),
    ("boxed", "\\boxed {D}", "D"),
    ("boxed", "\\boxed{B", "B"),
    ("answer", "Answer: C", "C"),
    ("answer", "Answer: c", "C"),
    ("answer", "answer:C", "C"),
    ("answer", "ANSWER: C.", "C"),
    ("answer", "Answer : C", "C"),
    ("answer", "Answer - C", "C"),
    ("answer", "Answer = C", "C"),
    ("answer", "Answer：C", "C"),
    ("answer", "Answer -> C", "C"),
    ("answer", "**Answer:** C", "C"),
    ("answer", "**Answer: C**", "C"),
    ("answer", "**Answer**: (C)", "C"),
    ("answer", "__Answer:__ `C`", "C"),
    ("answer", "### Answer: **C**", "C"),
    ("answer", "### Answer\n\nC", "C"),
    ("answer", "**Answer**\n**C**", "C"),
    ("answer", "Answer C", "C"),
    ("answer", "Answer: (C)", "C"),
    ("answer", "Answer: [C]", "C"),
    ("answer", "Answer: C) Paris", "C"),
    ("answer", "Answer: C. Paris", "C"),
    ("answer", "Answer: C - Paris", "C"),
    ("answer", "Answer: **C. Paris**", "C"),
    ("answer", "Answer: Paris", "C"),
    ("answer", "Answer: Rome, Italy.", "D"),
    ("answer", "Answer: $C$", "C"),
    ("answer", "Answer: $\\text{C}$", "C"),
    ("answer", 'Answer: "C"', "C"),
    ("answer", "Answer:\n\nC", "C"),
    ("answer", "Answer: option C", "C"),
    ("answer", "Answer: Option (C)", "C"),
    ("answer", "Final answer: C.", "C"),
    ("answer", "Final Answer: The final answer is C. I hope it is correct.", "C"),
    ("answer", "The answer is C", "C"),
    ("answer", "The answer is C.", "C"),
    ("answer", "The answer is (C)", "C"),
    ("answer", "The answer is (C) Paris.", "C"),
    ("answer", "The answer is: (C).", "C"),
    ("answer", "So the answer is **C**.", "C"),
    ("answer", "the answer is therefore (C).", "C"),
    ("answer", "The answer is most likely B.", "B"),
    ("answer", "The correct answer is: \n\n**C. Paris**", "C"),
    ("answer", "The correct answer is C because it is the capital.", "C"),
    ("answer", "The correct answer is A because of the river.", "A"),
    ("answer", "The correct answer is A, London.", "A"),
    ("answer", "The correct answer is Paris.", "C"),
    ("answer", "The correct option is C", "C"),
    ("answer", "The correct choice is (B).", "B"),
    ("answer", "The best answer is option D.", "D"),
    ("answer", "The right answer would be B.", "B"),
    ("answer", "My answer is B!", "B"),
    ("answer", "I choose B.", "B"),
    ("answer", "I would go with option B.", "B"),
    ("answer", "I'd pick (D).", "D"),
    ("answer", "Option B is correct.", "B"),
    ("answer", "Therefore (B) is the correct answer.", "B"),
    ("answer", "B is the right choice.", "B"),
    ("answer", "<answer>C</answer>", "C"),
    ("answer", "<answer>\nC\n</answer>", "C"),
    ("answer", '{"answer": "C"}', "C"),
    ("answer", "{'answer': 'C', 'confidence': 1}", "C"),
    ("answer", "Answer: A\nWait, that is wrong.\nAnswer: B", "B"),
    ("answer", "The answer is not A. The answer is B.", "B"),
    ("answer", "The correct answer is B. Option A is correct for other cities only.", "B"),
    ("answer", "The correct answer is B.\n\nOption A is correct for Britain.", "B"),
    ("answer", "Option A is correct for Britain.", "A"),
    ("letter", "C", "C"),
    ("letter", "c", "C"),
    ("letter", "C.", "C"),
    ("letter", "(C)", "C"),
    ("letter", "**C**", "C"),
    ("letter", " C\n", "C"),
    ("letter", "C. Paris", "C"),
    ("letter", "C) Paris", "C"),
    ("letter", "(C) Paris, since it is the capital.", "C"),
    ("letter", "**C. Paris**", "C"),
    ("letter", "C: Paris", "C"),
    ("letter", "It is the capital of France.\n\nC", "C"),
    ("letter", "It is the capital of France.\n\n**(C)**", "C"),
    ("letter", "A. London\nB. Berlin\nC. Paris\n\nC", "C"),
    ("option_text", "Paris", "C"),
    ("option_text", "paris.", "C"),
    ("option_text", "It is Paris, of course.", "C"),
    ("option_text", "The capital is **Paris**.", "C"),
    ("option_text", "It is not London, it is Paris.", "C"),
    ("option_text", "London and Berlin are capitals too.\nIt is Paris.", "C"),
    ("option_text", "Rome,  Italy", "D"),
]

NO_ANSWER = [
    "",
    "I cannot say.",
    "A. London\nB. Berlin\nC. Paris",
    "London or Paris",
    "It is neither A nor B",
    "The answer is B or C.",
    "Answer: B/C",
    "Answer: B, C",
    "The answer is a difficult question of taste.",
    "The answer is I think unclear.",
    "A city with a river.",
    "It is not Paris.",
    "\\boxed{E}",
    "Answer: X",
    "Answer: Z. But \\boxed{Q}",
    "\\boxed{B} is my first thought.\nFinally: \\boxed{E}",
]


@pytest.mark.parametrize(("form", "text", "letter"), STATED)
def test_an_answer_is_found_in_the_form_it_is_written_in(form: str, text: str, letter: str) -> None:
    assert find_answer(text, CITIES) == (letter, form)


@pytest.mark.parametrize("text", NO_ANSWER)
def test_what_chooses_nothing_is_no_answer(text: str) -> None:
    assert find_answer(text, CITIES) == (None, None)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: A dog is an animal", "A"),
        ("The answer is I do not know", "C"),
        ("The answer is: There is no answer.", "B"),
        ("No one knows that.", "E"),
        ("No.", "D"),
        ("No, it is not so.", "D"),
        ("There is no way to tell.", None),
        ("Answer: A", "A"),
        ("Answer: No", "D"),
    ],
)
def test_options_that_begin_like_letters_or_common_words(text: str, letter: str | None) -> None:
    assert find_answer(text, SENTENCES)[0] == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [("It is 3.5.", "A"), ("It is -3.5.", "B"), ("It is 3.55", "C"), ("\\boxed{3.5}", "A"), ("Answer: 35%", "D")],
)
def test_numbers_are_compared_whole_and_with_their_signs(text: str, letter: str) -> None:
    assert find_answer(text, NUMBERS)[0] == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("\\boxed{42}", "B"),
        ("\\boxed{\\text{42}}", "B"),
        ("The answer is 42.", "B"),
        ("Answer: $7$", "C"),
        ("42", "B"),
        ("6 × 7 = 42\n\n42", "B"),
        ("42\n\nB", "B"),
        ("9\nB", "B"),
        ("The answer is 42 because 6 × 7 is.", "B"),
        ("The answer is 4, since 2 + 2 is.", "A"),
        ("So we get \\boxed{42}, which is option B.\n\nAnswer: B", "B"),
        ("\\boxed{9}, and it is not 42.\n\nAnswer: B", None),
        ("The answer is 4.2", None),
        ("The answer is 4, 7", None),
        ("It is -42.", None),
        ("9", None),
    ],
)
def test_a_number_of_few_digits_is_an_options_text_before_it_is_a_letter(text: str, letter: str | None) -> None:
    assert find_answer(text, SHORT_NUMBERS)[0] == letter


@pytest.mark.parametrize("form", ["{}", "\\boxed{{{}}}", "The answer is {}", "Answer: ${}$", "**{}**"])
@pytest.mark.parametrize("letter", list(TERMS))
def test_the_text_of_an_option_is_told_from_one_that_differs_in_signs_only(form: str, letter: str) -> None:
    assert find_answer(form.format(TERMS[letter]), TERMS)[0] == letter


def test_a_text_that_is_like_several_options_or_lacks_a_sign_is_none() -> None:
    assert find_answer("The answer is 0 1", TERMS) == (None, None)
    assert find_answer("It is 3, I think.", TERMS) == (None, None)
    assert find_answer("Answer: 25 × 8, I think", {"A": "25 ÷ 8", "B": "7"}) == (None, None)


def test_a_letter_goes_before_a_text_that_is_the_same() -> None:
    options = {"A": "L", "B": "C", "C": "1/C"}
    assert find_answer("\\boxed{C}", options) == ("C", "boxed")
    assert find_answer("The answer is B) C", options) == ("B", "answer")
    assert find_answer("Answer: c", TERMS) == ("H", "answer")  # "c", and not C
    assert find_answer("Answer: C", TERMS) == ("C", "answer")


def test_an_option_that_stands_twice_is_said_by_its_text() -> None:
    assert find_answer("Paris", {"A": "Rome", "B": "Paris", "C": "Paris"}) == ("B", "option_text")
    assert find_answer("\\boxed{7}", {"A": "8", "B": "7", "C": "7"}) == ("B", "boxed")


@pytest.mark.parametrize("letter", list(TEN))
def test_every_one_of_ten_letters_is_found(letter: str) -> None:
    assert find_answer(f"The answer is ({letter}).", TEN) == (letter, "answer")
    assert find_answer(f"Answer: {letter}", TEN) == (letter, "answer")
    assert find_answer(f"\\boxed{{{letter}}}", TEN) == (letter, "boxed")


def test_digits_may_be_the_letters() -> None:
    options = {"1": "yes", "2": "no", "10": "perhaps"}
    assert find_answer("Answer: 10", options) == ("10", "answer")
    assert find_answer("\\boxed{2}", options) == ("2", "boxed")
    assert find_answer("Answer: 3", options) == (None, None)


def test_an_option_within_another_is_not_mentioned_by_it() -> None:
    options = {"A": "Paris", "B": "Paris, Texas"}
    assert find_answer("It is Paris, Texas.", options) == ("B", "option_text")
    assert find_answer("It is Paris.", options) == ("A", "option_text")
    assert find_answer("It is Paris, Texas, and not what Paris is.", options)[0] is None


def test_only_the_formats_asked_for_are_tried_and_in_their_order() -> None:
    text = "\\boxed{A}\nAnswer: B\nC"
    assert find_answer(text, CITIES, ("answer", "boxed")) == ("B", "answer")
    assert find_answer(text, CITIES, ("letter", "answer")) == ("C", "letter")
    assert find_answer("Paris", CITIES, ("boxed", "answer")) == (None, None)


def test_a_regex_finds_its_group_its_whole_match_or_the_alternative_that_took_part() -> None:
    assert find_answer("A1 >>B<< >>C<<", CITIES, ("regex",), r">>(\w)<<") == ("C", "regex")
    assert find_answer("pick B", CITIES, ("regex",), r"[A-D]\b") == ("B", "regex")
    assert find_answer("pick: D", CITIES, ("regex",), r"take: (\w)|pick: (\w)") == ("D", "regex")
    assert find_answer("nothing", CITIES, ("regex", "boxed"), r">>(\w)<<") == (None, None)
    assert find_answer("\\boxed{A}", CITIES, ("regex", "boxed"), r">>(\w)<<") == ("A", "boxed")


@pytest.mark.parametrize(
    "run",
    [
        *(" " * 100_000, "\n" * 100_000, "*" * 100_000, "* \n" * 33_000, "(" * 100_000),
        *("so, " * 25_000, "a\n" * 50_000, "it is, " * 14_000),
    ],
    ids=lambda run: f"{run[:6]!r}",
)
def test_a_long_run_takes_no_long_time_and_leaves_the_answer_beside_it(run: str) -> None:
    started = time.perf_counter()
    assert find_answer(f"\\boxed{{B}}\n{run}", CITIES)[0] == "B"
    assert find_answer(f"x{run}\n\nAnswer: B", CITIES)[0] == "B"
    find_answer(f"answer{run}A{run}is it", CITIES)
    assert time.perf_counter() - started < 30


def test_a_long_answer_takes_no_long_time() -> None:
    text = "The answer is unclear. A B C \\boxed{ ( [ * " * 4_000
    started = time.perf_counter()
    find_answer(text, CITIES, DEFAULT_FORMATS)
    assert time.perf_counter() - started < 30
