"""Right answers in the many ways they are written, and wrong ones that look like them."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from images.resources_servers.math_answer.comparison import Expected, Group, clean, is_right, value_of
from images.resources_servers.math_answer.number_forms import number_of

RIGHT = {
    "18": [
        "18", "$18$", r"\$18", "$18.00", "18.0", "+18", "18 dollars", r"18\text{ eggs}", r"18\,\text{eggs per day}",
        "**18**",
        "`18`", "18.", r"\text{18}", r"\textbf{18}", "about 18", "= 18", "１８", r"18 \text{ cm}^2",
        r"18\ \mathrm{km/h}", "18 km/h",
        r"\quad 18 \;", "{18}", r"\left(18\right)", "(18)", "x = 18", "x=18.", "x = 9 + 9 = 18", r"\boxed{18}",
        "2 \\cdot 9", r"\underline{18}", r"\color{red}{18}", r"18 \checkmark", r"\text{The answer is } 18",
        "m+n = 18", "36/2", "36.0 / 2.0",
        "**18** dollars", r"9+9=18 \text{ dollars}", r"9 \text{ eggs} \times 2 = 18", "18 men",
        r"18^{\circ}", "18 %", "a total of 18 apples", "x \\approx 18", r"\frac{36}{2}", r"\sqrt{324}", "0018", "18€",
    ],
    "1450000": [
        "1,450,000", r"\$1{,}450{,}000", r"1\,450\,000", "1 450 000", "1.45 million", r"1.45 \times 10^6", "1.45e6",
        "1.45E+06",
        r"1.45\cdot 10^{6}", "1450 thousand",
    ],
    r"$\frac{1}{2}$": [
        "0.5", ".5", "1/2", r"\dfrac12", r"\frac{2}{4}", r"50\%", "2^{-1}", r"\frac{1}{2}\text{ hour}", "½",
    ],
    r"$\frac{1}{3}$": ["0.333333", "0.33333333", r"\tfrac{1}{3}", "1 / 3"],
    r"$\frac{5}{2}$": [r"2\frac{1}{2}", "2 1/2", "2½", "2.5", r"\frac{10}{4}"],
    r"$-\frac{5}{2}$": [r"-2\frac{1}{2}", "-2.5", "−5/2", r"\frac{-5}{2}"],
    r"$2\sqrt{3}$": [
        r"\sqrt{12}", r"2\sqrt3", "2 sqrt(3)", "2√3", "3.464102", r"2 \cdot 3^{1/2}", r"\frac{6}{\sqrt{3}}",
    ],
    r"$548 \pi$": ["548π", "548 pi", r"\pi \cdot 548", r"548\pi\text{ cm}"],
    r"(-\infty,-5)": ["x<-5", r"(-\infty, -5)", r"x \in (-\infty,-5)", r"\left(-\infty,-5\right)", "(−∞, −5)"],
    r"$[\frac{1}{2}, 8]$": ["[0.5,8]", r"\left[\frac12, 8\right]", r"x \in [1/2, 8]", r"\frac{1}{2} \le x \le 8"],
    r"$(-\infty, 0) \cup\{1\}$": [r"\{1\} \cup (-\infty, 0)", r"(-\infty,0)\cup \{1\}"],
    "$(2,251,252)$": ["(2, 251, 252)", "(2,251,252)", r"(2,\,251,\,252)", "(a,b,c) = (2, 251, 252)"],
    "(1,234, 5)": ["(1234, 5)", "(1,234, 5)"],
    r"$\frac{R}{r}$": [r"\frac{2R}{2r}", "R/r"],
    "$2RC+R+C$": ["2RC+C+R"],
    "$2n$": ["2N", "n+n"],
    "$6m$": ["6m", "6 m", "3m+3m"],
    "$6 m$": ["6m", r"2 \cdot 3m"],
    "2ab": ["2ba", "2 a b", "ab+ab"],
    r"\pi": [r"\pi\text{ square units}", r"\pi \text{ cm}^2"],
    "(6,5)": ["(6, 5)", r"\left(6,5\right)", "6, 5", "(x,y)=(6,5)", r"(6;5)", "(6.0, \\frac{10}{2})"],
    "$k=3$": ["3", "n=3", "k = 3", "6/2"],
    "$f(x)=x+1$": ["x+1", "f(x) = 1 + x", "g(x)=x+1"],
    "62.5%": [r"62.5\%", "62.5", "0.625", "62.5 percent", r"\frac{5}{8}", "62.50 %"],
    r"$45^{\circ}$": ["45", "45°", r"45\text{ degrees}", r"45^\circ", "45 degrees"],
    r"$\binom{2n}{n}$": [r"\frac{(2n)!}{n!n!}", r"{2n \choose n}"],
    "$2n-2$": ["2(n-1)", "2 n - 2", "-2+2n"],
    r"$m n-\lfloor m / 2\rfloor$": [r"mn - \lfloor \frac{m}{2} \rfloor"],
    r"$k \geqslant 2$": [r"k \ge 2", "k>=2", r"2 \le k"],
    "120": ["5!", "120.0"],
    "10000": ["10^4", "10**4", "10,000"],
    "0": ["0", "-0", "0.0", "0 apples"],
}  # fmt: skip
WRONG = {
    "18": [
        "19", "18x", "180", "1.8", "-18", "17 or 18", "18, 19", "18 million", "18/1000", "18!", r"18\pi", "18 pi",
        "18n", "18 n", "18i",
        "18 dozen", "18 to 20", "18 and a half", "1 8", "", "$", "eighteen", "NaN", r"\infty", "x", "x = 18 + 1",
        "18^2", "18=19", "81", "18xy", "18ab", "18 mn", "18 squared", "9+9=19 dollars", "5>3=18",
    ],
    "$(2,251,252)$": ["2251252", "(2251252)", "(2, 251252)", "(2, 252, 251)"],
    r"$\frac{R}{r}$": [r"\frac{r}{R}", "1"],
    "$2r^2$": ["2Rr"],
    "$6m$": ["6"],
    "$6 m$": ["6"],
    "3mg": ["3"],
    r"$\frac{1}{2}mg$": ["0.5"],
    "2ab": ["2", "2cd", "2a"],
    "5h": ["5g", "5"],
    r"$2 \pi r$": [r"2 \pi r t", r"2\pi rh", r"2\pi"],
    r"$\frac{1}{3}$": ["0.33", "0.3", "0.333334", "3", "1/0", "1/4"],
    r"$\frac{1}{2}$": ["2", "1,2", r"\frac{2}{1}", "12"],
    "50": ["0.5", "50 000", "5"],
    "(6,5)": ["(5,6)", "[6,5]", r"\{6,5\}", "(6,5,5)", "6", "65", "11"],
    r"$[\frac{1}{2}, 8]$": [r"(\frac12,8)", r"[\frac12,8)", r"\frac12, 8", "[8, 0.5]", r"\frac{1}{2} < x \le 8"],
    r"(-\infty,-5)": [r"x \le -5", "x>-5", r"(-5,\infty)", r"(-\infty,-5]"],
    r"$2\sqrt{3}$": [r"\sqrt{3}", "3.46", r"2\sqrt{2}", "23", r"\sqrt{6}"],
    "$f(x)=x+1$": ["f(x)=x-1", "x", "1"],
    "62.5%": ["6.25", "625", "0.0625"],
    "0": [r"\emptyset", "1", "none", "R-r"],
    "1": [r"\text{yes}", r"\infty", "true"],
    r"$\angle A B C=90$": [r"\angle A C B=90", r"\angle A B C=91"],
}  # fmt: skip
SEVERAL_RIGHT = {
    "1,3,5": [
        "5, 3, 1", r"\{1,3,5\}", "1, 3, and 5", r"1 \text{ and } 3 \text{ and } 5", "x=1, x=3, x=5", "x = 1, 3, 5",
        r"x \in \{1, 3, 5\}", "1;3;5", "1 or 3 or 5", r"1\\3\\5", "(1,3,5)", r"$1$, $3$, $5$",
        "x_1 = 1, x_2 = 3, x_3 = 5",
    ],
    "$-1$,$2$,$-2$": [r"\pm 2, -1", r"-1 \text{ or } \pm2", "{-2,-1,2}"],
    "2500,7500": ["7,500 and 2,500", "7500, 2500", r"\$2{,}500,\ \$7{,}500"],
    "$(1,8,19), (2,7,13)$": ["(2,7,13),(1,8,19)", r"(2,7,13) \text{ and } (1,8,19)", r"\{(1,8,19),(2,7,13)\}"],
    "$f(x)=x$,$f(x)=2-x$": ["2-x, x", "f(x)=2-x, f(x)=x"],
    r"$90^{\circ}$,$60^{\circ}$": ["60, 90", r"90^\circ \text{ and } 60^\circ"],
    r"$\frac{1}{3},1,\frac{1}{9}$": [r"1, \frac13, \frac19"],
}  # fmt: skip
SEVERAL_WRONG = {
    "1,3,5": ["1,3", "1,3,5,7", "135", "1,3,6", "5", "1,3,5,5", "{1,3}"],
    "2500,7500": ["25007500", "2500", "2500,7501"],
    "$(6,3),(9,3)$": ["(3,6),(9,3)", "(6,3)", "6,3,9,3"],
}


def pairs(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(expected, answer) for expected, answers in table.items() for answer in answers]


@pytest.mark.parametrize(("expected", "answer"), pairs(RIGHT))
def test_a_right_answer_is_right_however_it_is_written(expected: str, answer: str) -> None:
    assert is_right(answer, Expected(expected))


@pytest.mark.parametrize(("expected", "answer"), pairs(WRONG))
def test_a_wrong_answer_is_wrong_however_near(expected: str, answer: str) -> None:
    assert not is_right(answer, Expected(expected))


@pytest.mark.parametrize(("expected", "answer"), pairs(SEVERAL_RIGHT))
def test_several_values_may_stand_in_any_order(expected: str, answer: str) -> None:
    assert is_right(answer, Expected(expected, several=True))


@pytest.mark.parametrize(("expected", "answer"), pairs(SEVERAL_WRONG))
def test_all_of_several_values_are_needed_and_no_others(expected: str, answer: str) -> None:
    assert not is_right(answer, Expected(expected, several=True))


@pytest.mark.parametrize(
    ("answer", "right"), [("4.2", True), ("4.3", True), ("4.1", True), ("4.31", False), ("4.09", False), ("4.2%", True)]
)
def test_a_tolerance_is_how_far_a_number_may_be_off(answer: str, right: bool) -> None:
    assert is_right(answer, Expected("4.2", tolerance=0.1)) is right


@pytest.mark.parametrize(
    ("unit", "answer", "right"),
    [
        ("km", "36", True),
        ("km", "36 km", True),
        ("km", r"36\text{ kilometers}", True),
        ("km", "36 m", False),
        ("km", "36 miles", False),
        ("minutes", "36 min", True),
        ("minutes", "36 hours", False),
        ("km/h", r"36\ \mathrm{km/h}", True),
        ("$cm^2$", r"36\text{ cm}^2", True),
        ("$cm^2$", r"36\text{ cm}", False),
        ("%", r"36\%", True),
        (r"^{\circ}", "36°", True),
        (r"^{\circ}", "36 degrees", True),
    ],
)
def test_a_unit_may_be_left_out_and_must_not_be_another(unit: str, answer: str, right: bool) -> None:
    assert is_right(answer, Expected("36", unit=unit)) is right


def test_cleaning_keeps_what_changes_a_value() -> None:
    assert clean(r"\left( \dfrac12,\; 3 \right]") == r"( \frac{1}{2}, 3 ]"
    assert clean("5!") == "5!"
    assert clean(".5") == ".5"
    assert clean("x²") == "x^2"
    assert clean("\ud800 5") == "? 5"


def test_an_answer_is_taken_apart_at_its_own_commas_only() -> None:
    assert value_of("(1,2)", thousands=False) == Group("()", ("1", "2"), "(1,2)")
    assert value_of("1,234", thousands=True) == "1234"
    assert value_of("1,234", thousands=False) == Group("", ("1", "234"), "1,234")
    assert value_of("f(x, y), 2", thousands=False) == Group("", ("f(x, y)", "2"), "f(x, y), 2")
    assert value_of("random, sand", thousands=False) == Group("", ("random", "sand"), "random, sand")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.50", Fraction(3, 2)), ("-2 1/3", Fraction(-7, 3)), ("1e-3", Fraction(1, 1000)), ("3/4 cup", Fraction(3, 4))],
)
def test_numbers_are_exact(text: str, value: Fraction) -> None:
    number = number_of(text)
    assert number is not None
    assert number.value == value


def test_many_words_after_a_number_are_read_at_once() -> None:
    began = time.process_time()
    assert number_of("18 " + "kilometers per hour " * 90 + "(approximately)") is None
    assert is_right(r"\sqrt{3} " + "kilometers per hour " * 4 + "!", Expected(r"\sqrt{2}")) is False
    assert time.process_time() - began < 60


@pytest.mark.parametrize("text", ["", "x", "1/0", "1 2", "2n", "2 pi", "3 dozen", "1.2.3", "--1", "1e9999"])
def test_what_is_no_number_is_none(text: str) -> None:
    assert number_of(text) is None
