from __future__ import annotations

import time

import pytest

from nemo_gym.servers.final_answers import LONGEST_TEXT, boxed_contents, find_final_answer, without_long_runs

FOUND = [
    ("boxed", "So \\boxed{42}.", "42"),
    ("boxed", "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("boxed", "\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
    ("boxed", "\\boxed{\\left\\{1\\right.}", "\\left\\{1\\right."),
    ("boxed", "\\boxed{1} then \\boxed{2}", "2"),
    ("boxed", "\\boxed{\\boxed{42}}", "42"),
    ("boxed", "\\fbox{42}", "42"),
    ("boxed", "\\framebox{42}", "42"),
    ("boxed", "$\\boxed 42$", "42"),
    ("boxed", "\\boxed{42} \\boxed{}", "42"),
    ("boxed", "The answer is 41. \\boxed{42}", "42"),
    ("hashes", "6 * 7 = <<6*7=42>>42\n#### 42", "42"),
    ("hashes", "#### $1,450,000 ", "$1,450,000"),
    ("hashes", "#### **42**", "**42**"),
    ("hashes", "#### n(n+1)/2", "n(n+1)/2"),
    ("hashes", "#### sqrt3 + 1", "sqrt3 + 1"),
    ("hashes", "#### \\frac{1}{2}", "\\frac{1}{2}"),
    ("hashes", "#### 42\n#### Note", "42"),
    ("stated", "#### Step 3: Add them\n9+9=18\n\nThe answer is 18.", "18"),
    ("stated", "#### 1. Add\n9+9=18\n#### 2. Conclude\nThe answer is 18.", "18"),
    ("stated", "#### Answer: 18", "18"),
    ("last", "#### Final Answer\n18", "18"),
    ("last", "#### **Conclusion**\nSo she makes 18 dollars.", "18"),
    ("last", "#### 2nd step\n9 + 9 = 18", "18"),
    ("stated", "The answer is:\n\\[\n18\n\\]", "18"),
    ("stated", "The answer is:\n\n$$\n18\n$$", "18"),
    ("stated", '{"answer": 18}', "18"),
    ("stated", '```json\n{"final_answer": "\\\\frac{1}{2}", "confidence": 0.9}\n```', "\\frac{1}{2}"),
    ("stated", '{"answer": 1.50, "confidence": 0.9}', "1.50"),
    ("stated", "The answer is 42.", "42"),
    ("stated", "The answer is 3.5 metres. Is it?", "3.5 metres"),
    ("stated", "**Answer:** 42", "42"),
    ("stated", "### Final Answer: **42**", "42"),
    ("stated", "Answer:\n\n42", "42"),
    ("stated", "The final answer is $x = 3$ and $x = 4$.", "$x = 3$ and $x = 4$"),
    ("stated", "The answer to this problem is 42", "42"),
    ("stated", "The answer is that there are $5$ ways.", "5"),
    ("stated", "The answer is that he has 5 left", "5"),
    ("stated", "The answer is 41. Wait: the answer is 42.", "42"),
    ("stated", "Die Antwort lautet 42.", "42"),
    ("stated", "La respuesta es 42.", "42"),
    ("stated", "La réponse est : 42", "42"),
    ("stated", "答案是42。", "42"),
    ("stated", "答案：42", "42"),
    ("last", "So she has 42 eggs.", "42"),
    ("last", "So he will be 4 + 4 = 8 years old 4 years from now.", "8"),
    ("last", "They spent $105 + $230 = $335 in all.", "$335"),
    ("last", "She has $18 left on day 3\nThat is -$18", "-$18"),
    ("last", "Hence $n^2 + 1$ works.", "n^2 + 1"),
    ("last", "Then \\(x = 7\\).", "x = 7"),
    ("last", "It costs $5 or $6.50", "$6.50"),
    ("last", "6 of them, which is 3/4 or 75%", "75%"),
]


@pytest.mark.parametrize(("form", "text", "answer"), FOUND)
def test_an_answer_is_found_in_its_form(form: str, text: str, answer: str) -> None:
    assert find_final_answer(text) == (answer, form)


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "I do not know.", "\\boxed{42", "The answer is 41. \\boxed{4", "\\boxed{}", "\\boxed{ }", "####"],
)
def test_no_answer_is_none(text: str) -> None:
    assert find_final_answer(text) == (None, None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("$x=\\boxed{1}$ or $x=\\boxed{2}$", "1, 2"),
        ("First \\boxed{9}.\n\nIn the end \\boxed{1} and \\boxed{2}", "1, 2"),
        ("We saw \\boxed{9}. Now \\boxed{1}, \\boxed{2}", "1, 2"),
        ("\\boxed{1, 2}", "1, 2"),
    ],
)
def test_several_boxes_of_one_sentence_are_one_answer_where_several_are_asked_for(text: str, answer: str) -> None:
    assert find_final_answer(text, several=True) == (answer, "boxed")


def test_only_the_forms_asked_for_are_tried_and_in_their_order() -> None:
    text = "\\boxed{1}\nThe answer is 2.\n#### 3"
    assert find_final_answer(text) == ("1", "boxed")
    assert find_final_answer(text, forms=("stated", "boxed")) == ("2", "stated")
    assert find_final_answer(text, forms=("hashes",)) == ("3", "hashes")
    assert find_final_answer("so 42", forms=("boxed", "stated")) == (None, None)


def test_a_box_knows_where_it_is_and_whether_it_is_closed() -> None:
    text = "a \\boxed{b} c \\boxed{d{e}"
    boxes = list(boxed_contents(text))
    assert [(box.content, box.closed) for box in boxes] == [("b", True), ("d{e}", False)]
    assert text[boxes[0].start : boxes[0].end] == "\\boxed{b}"


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "\\boxed{1} ",
        "The answer is ",
        "$",
        "$5 + ",
        "1,",
        "= 1 + ",
        "#### ",
        "\\(",
        "{" * 50,
        "\n",
        " ",
        "\n a",
    ],
)
def test_a_megabyte_of_anything_takes_no_long_time(unit: str) -> None:
    began = time.perf_counter()
    find_final_answer(unit * (1_000_000 // len(unit)), several=True)
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize("blank", [" ", "\n", "\t\n", "\n- "])
def test_an_answer_is_found_between_a_hundred_thousand_blanks(blank: str) -> None:
    blanks = blank * (100_000 // len(blank))
    began = time.perf_counter()
    assert find_final_answer(f"{blanks}The answer is 42.{blanks[:90_000]}") == ("42", "stated")
    assert time.perf_counter() - began < 10


def test_of_a_long_run_without_letters_its_ends_are_left() -> None:
    assert without_long_runs(f"a{'-' * 100}_{'+' * 27}b") == f"a{'-' * 100}_{'+' * 27}b"
    assert without_long_runs(f"a.\n{' ' * 500}\n-5{'*' * 200}") == f"a.\n{' ' * 62}{' ' * 62}\n-5{'*' * 128}"


def test_the_end_of_a_text_counts() -> None:
    assert find_final_answer("\\boxed{41}" + " word" * LONGEST_TEXT + " \\boxed{42}") == ("42", "boxed")
