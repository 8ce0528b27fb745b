"""Further forms of answers: other languages, other letters, JSON, conclusions; and what only looks like a choice."""

from __future__ import annotations

import time

import pytest

from images.resources_servers.mcqa.choices import find_answer

CITIES = {"A": "London", "B": "Berlin", "C": "Paris", "D": "Rome, Italy"}

CHOSEN = [
    ("The correct answer is option (B).", "B"),
    ("**B**", "B"),
    ("B.", "B"),
    ("\\boxed{\\text{B}}", "B"),
    ('{"answer":"B"}', "B"),
    ('{"answer": "B"}', "B"),
    ('```json\n{"answer": "B"}\n```', "B"),
    ('{"reasoning": "A is not", "answer": "B"}', "B"),
    ('{"Answer": "b"}', "B"),
    ('{"choice": "B"}', "B"),
    ('{"final_answer": "B"}', "B"),
    ('{"correct_option": "B"}', "B"),
    ('{"letter":"B"}', "B"),
    ("Berlin", "B"),
    ("b", "B"),
    ("(b)", "B"),
    ("b)", "B"),
    ("answer is b", "B"),
    ("В", "B"),
    ("Ｂ", "B"),
    ("Ответ: В", "B"),
    ("Answer: В", "B"),
    ("(С)", "C"),
    ("А", "A"),
    ("Answer：Ｂ", "B"),
    ("𝐁", "B"),
    ("Ⓑ", "B"),
    ("Die richtige Antwort ist B.", "B"),
    ("Antwort: B", "B"),
    ("La réponse est B.", "B"),
    ("Réponse : B", "B"),
    ("La respuesta correcta es B.", "B"),
    ("Respuesta: (B)", "B"),
    ("A resposta é B", "B"),
    ("La risposta corretta è B", "B"),
    ("答案是B", "B"),
    ("答案：B", "B"),
    ("正确答案是 B。", "B"),
    ("答えはBです", "B"),
    ("答え：B", "B"),
    ("정답은 B입니다.", "B"),
    ("정답: B", "B"),
    ("Ответ: B", "B"),
    ("Правильный ответ — B", "B"),
    ("选B", "B"),
    ("选择B。", "B"),
    ("الإجابة: B", "B"),
    ("Cevap: B", "B"),
    ("उत्तर: B", "B"),
    ("Option B", "B"),
    ("Choice B", "B"),
    ("option b", "B"),
    ("Option B: Berlin", "B"),
    ("B - Berlin", "B"),
    ("B: Berlin", "B"),
    ("B\n\nBecause it is.", "B"),
    ("[B]", "B"),
    ("<B>", "B"),
    ("`B`", "B"),
    ('"B"', "B"),
    ("$B$", "B"),
    ("$\\mathbf{B}$", "B"),
    ("\\textbf{B}", "B"),
    ("\\boxed{B. Berlin}", "B"),
    ("\\boxed{\\textbf{(B) } Berlin}", "B"),
    ("\\boxed{\\text{(B) Berlin}}", "B"),
    ("\\boxed{\\mathrm{B}}", "B"),
    ("The answer is $\\boxed{B}$.", "B"),
    ("Answer is: B", "B"),
    ("ans: B", "B"),
    ("Ans. B", "B"),
    ("The final answer is \\(B\\)", "B"),
    ("I think it's B.", "B"),
    ("It's B", "B"),
    ("It is B.", "B"),
    ("My choice: B", "B"),
    ("Correct: B", "B"),
    ("B is correct", "B"),
    ("B is the answer", "B"),
    ("The answer must be B", "B"),
    ("Thus, B.", "B"),
    ("Therefore, the answer is B) Berlin", "B"),
    ("I'd say B", "B"),
    ("The correct letter is B", "B"),
    ("Final answer: **B) Berlin**", "B"),
    ("Answer:B", "B"),
    ("answer: (b) Berlin", "B"),
    ("<answer>B</answer>", "B"),
    ("[[B]]", "B"),
    ("A: wrong. B: right. So B.", "B"),
    ("<|answer|>B", "B"),
    ("The answer is B, not A.", "B"),
    ("The capital is Berlin, so **B**", "B"),
    ("B) Berlin is the capital of Germany; A) London is not.", "B"),
    ("𝗕", "B"),
    ("ℬ", "B"),
    ("Β", "B"),
    ("Answer: \u200eB", "B"),
    ("B", "B"),
    ("\u200bB", "B"),
    ("B\u00a0", "B"),
]

NOTHING_CHOSEN = [
    "Answer: A or B",
    "Answer: A/B",
    "A and B",
    "Both A and B",
    "A, B",
    "Answer: (A) or (B)",
    "either B or C",
    "Answer: Not B",
    "None of them",
    "All of the above",
    "E",
    "A vitamin is what it lacks.",
    "It is about A and what follows.",
    "I",
    "В Париже",
    "Ответ: В Париже или в Лондоне",
    "А это не так",
    "The choice was hard.",
    "Correct me if I am wrong.",
    "Answer: a river",
]


SEVERAL_CHOSEN = [
    "A, B and C",
    "A, C",
    "A; C",
    "A + C",
    "A and/or C",
    "(A) and/or (C)",
    "A as well as C",
    "A, or possibly C",
    "**A** and **C**",
    "A. London or C. Paris",
    "A) London, C) Paris",
    "A - London, C - Paris",
    "A (London) or C (Paris)",
    "A. the city of London, C. the city of Paris",
    "A and C are correct",
    "A, C are right and B is wrong",
    "A. B. C.",
    "B C",
]
STATING = ["B", "(B)", "B. Berlin", "**B) Berlin**"]
DISCUSSING = [
    ", not A.",
    ", and C is wrong because it is not",
    "; A, C and D are wrong.",
    ". (A) and (C) are incorrect.",
    ". Both A and C are false.",
    ", because (A), (C) and (D) are elsewhere.",
    " rather than A or C.",
    " (not A, C, or D).",
    ". I considered A, C, and D.",
    ". A) London is in England, C) Paris is in France.",
    ". A. is wrong",
    "\n\nA: wrong\nC: wrong\nD: wrong",
    "\n\nI don't think A is correct.",
    "\n\nIncorrect answer: A",
    ". A wrong answer would be A.",
    "\n\nIt is unlikely that A is correct.",
    "\n\nOption A is correct for England only.",
]
DENIED = [
    "I don't think B is correct.",
    "I am not sure that B is correct.",
    "It is unlikely that B is the correct answer",
    "It is not true that the answer is B.",
    "I doubt the answer is B.",
    "B is correct? No.",
    "B is right only for Germany.",
    "Incorrect answer: B",
    "Incorrect answer: Berlin",
    "The wrong answer is Berlin.",
    "The wrong answer is B.",
    '{"wrong_answer": "B"}',
    "If the answer is B, it has a river.",
    "Die falsche Antwort ist B.",
    "错误答案是B",
]


@pytest.mark.parametrize("text", SEVERAL_CHOSEN)
@pytest.mark.parametrize("form", ["{}", "Answer: {}", "The answer is {}", "\\boxed{{{}}}", "Answer:\n{}"])
def test_several_options_are_no_answer(form: str, text: str) -> None:
    assert find_answer(form.format(text), CITIES) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        *("A\nC", "B\n\nC", "A\nB\nC", "Answer:\nA\nC", "Answer:\n\nA) London\nC) Paris"),
        *("\\boxed{A} or \\boxed{C}", "$\\boxed{A}$, $\\boxed{C}$", "\\boxed{A, B \\text{ and } C}"),
        *("\\boxed{A}. No: \\boxed{A, C}", "The answer is A. No, the answer is B or C."),
    ],
)
def test_options_in_several_lines_boxes_or_statements_are_no_answer(text: str) -> None:
    assert find_answer(text, CITIES) == (None, None)


@pytest.mark.parametrize("discussing", DISCUSSING)
@pytest.mark.parametrize("stating", STATING)
def test_an_answer_stays_one_when_the_others_are_discussed(stating: str, discussing: str) -> None:
    assert find_answer(f"The answer is {stating}{discussing}", CITIES) == ("B", "answer")
    assert find_answer(f"A is not in Germany. Answer: {stating}{discussing}", CITIES) == ("B", "answer")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: A) It rises, and it falls", "A"),
        ("Answer: D. Both A and B", "D"),
        ("The answer is D, both A and B.", "D"),
        ("A and B", None),
        ("Answer: A. It rises, and it falls, B. It falls", None),
    ],
)
def test_letters_and_joining_words_in_an_options_own_text_choose_nothing(text: str, letter: str | None) -> None:
    options = {"A": "It rises, and it falls", "B": "It falls", "C": "It stays", "D": "Both A and B"}
    assert find_answer(text, options)[0] == letter


@pytest.mark.parametrize("text", DENIED)
def test_what_is_denied_is_not_chosen(text: str) -> None:
    assert find_answer(text, CITIES) == (None, None)
    assert find_answer(f"The answer is C.\n\n{text}", CITIES) == ("C", "answer")


@pytest.mark.parametrize(
    "text",
    [
        *("It is not hard to see that the answer is B.", "There is no doubt that B is correct."),
        *("A is wrong and the answer is B.", "It isn't A, so the answer is B."),
        *(
            "I don't think B is correct. I think the answer is B.",
            "The right answer would be B. A wrong answer would be A.",
        ),
    ],
)
def test_what_denies_something_else_denies_no_answer(text: str) -> None:
    assert find_answer(text, CITIES) == ("B", "answer")


@pytest.mark.parametrize(("text", "letter"), CHOSEN)
def test_a_choice_is_found(text: str, letter: str) -> None:
    assert find_answer(text, CITIES)[0] == letter


@pytest.mark.parametrize("text", NOTHING_CHOSEN)
def test_what_only_looks_like_a_choice_is_none(text: str) -> None:
    assert find_answer(text, CITIES) == (None, None)


def test_options_may_be_of_another_alphabet() -> None:
    options = {"A": "Да", "B": "Нет", "C": "В Париже"}
    assert find_answer("Ответ: В Париже", options)[0] == "C"
    assert find_answer("Нет.", options)[0] == "B"
    assert find_answer("Ответ: В", options)[0] == "B"


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 150_000, "Answer: " * 130_000, "Ответ: В Париже. " * 60_000, "So it is " * 110_000]
)
def test_a_megabyte_takes_no_long_time(text: str) -> None:
    began = time.perf_counter()
    find_answer(text, CITIES)
    assert time.perf_counter() - began < 10
