"""Further forms of answers: other languages, other letters, JSON, conclusions; and what only looks like a choice."""

from __future__ import annotations

import time

import pytest

from images.resources_servers.mcqa.app import find_answer

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
