r"""Whether an answer has the expected value: as text, as numbers, part by part, or as expressions.

Numbers are compared exactly, lists and tuples part by part, and all else by math-verify, which uses sympy. Sympy can
compute for ever on what a model writes: call ``is_right`` where it can be ended.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from images.resources_servers.math_answer.number_forms import (
    ROUNDED_DECIMALS,
    has_another_unit,
    is_same_number,
    number_of,
    without_unit,
)


@dataclass(frozen=True)
class Expected:
    """The answer that is right; see ``Row``."""

    text: str
    several: bool = False
    unit: str | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Group:
    """Values that belong together, as they stand in ``text``."""

    brackets: str  # "" of a list, "{}" of a set, "()" of a tuple or open interval, "(]" and so on of an interval
    parts: tuple[Value, ...]
    text: str


Value = Group | str


def is_right(answer: str, expected: Expected) -> bool:
    """Whether an answer has the expected value."""
    given, wanted = clean(answer), clean(expected.text)
    if not given:
        return False
    right = value_of(wanted if expected.several else _with_thousands(wanted), thousands=False)
    # Commas may part thousands or values; an answer is right when it is right either way.
    for thousands in (True, False):
        value = value_of(given, thousands=thousands)
        if expected.unit is not None and any(has_another_unit(leaf, clean(expected.unit)) for leaf in _leaves(value)):
            return False
        if _is_equal(value, right, expected.tolerance):
            return True
    return False


def _leaves(value: Value) -> Iterator[str]:
    if isinstance(value, str):
        yield _NAMED.sub("", value, count=1) if _NAMED.match(value) else value
    else:
        for part in value.parts:
            yield from _leaves(part)


_SUPERSCRIPTS: Final = str.maketrans(
    {"²": "^2", "³": "^3", "⁴": "^4", "°": r"^\circ", "½": " 1/2", "¼": " 1/4", "¾": " 3/4"}
)
_SYMBOLS: Final = {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "∈": r"\in ", "≈": r"\approx ", "±": r"\pm "}  # fmt: skip
_REWRITES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\\$|[€£¥]|(?<!\\)\$|\\[()\[\]]", ""),  # currency, and what opens and closes mathematics
        (r"(?<=\d)(?:\\,|\\!|\\ |\{,\}|,\\!|,\\ |\s)(?=\d{3}(?:\D|$))", ","),  # thousands as LaTeX parts them
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|middle)(?![A-Za-z])", ""),
        (r"\\[,;:!> ]|~|\\q?quad(?![A-Za-z])|&", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\(?:boxed|fbox|underline|boldsymbol|bm)\s*\{([^{}]*)\}", r"\1"),
        (r"\\(?:textcolor|color)\s*\{[^{}]*\}|\\checkmark(?![A-Za-z])|[✓✔✅]", ""),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{\s*(?:and|or|,)\s*\}", " and "),
        (r"\\(?:land|lor|vee|wedge)(?![A-Za-z])|\\\\|\n", ","),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degrees?(?![A-Za-z])", ""),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\d+|[A-Za-z]|\([^()]*\))", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"(?<=\S)\*\*(?=[.,;:!?)]|\s+[^\s\d({]|\s*$)", ""),  # the end of bold text
        (r"\*\*(?=[\d({])", "^"),
        (r"\\geqslant|\\geq(?![A-Za-z])|>=", r"\\ge "),
        (r"\\leqslant|\\leq(?![A-Za-z])|<=", r"\\le "),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r" \1 "),
        (r"\s+", " "),
    )
)


_MARKUP: Final = " \t*_`\"'“”"


def clean(text: str) -> str:
    """An answer without what changes its looks and not its value."""
    text = text.encode("utf-8", "replace").decode("utf-8").translate(_SUPERSCRIPTS)
    text = unicodedata.normalize("NFKC", text).strip(_MARKUP)
    for symbol, by in _SYMBOLS.items():
        text = text.replace(symbol, by)
    for pattern, by in _REWRITES:
        text = pattern.sub(by, text)
    text = text.lstrip(_MARKUP).rstrip(_MARKUP + ".,;:")
    return re.sub(
        r"^(?:(?:the )?(?:final )?answer is|about|approximately|exactly|equals?|a total of|\\approx|=)\s*",
        "",
        text,
        flags=re.IGNORECASE,
    )


_JOINT = re.compile(r"\s*(?:[,;]\s*(?:and|or)\b|[,;]|\b(?:and|or)\b)\s*", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_SET = re.compile(r"\\\{(.*)\\\}|\{(.*)\}")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![a-z])\s*")
# A name before its value: "x =", "f(x) =", "m_{max} =", "\angle ABC =", "AB =".
_NAMED = re.compile(
    r"(?:\([\w{}, ]+\)|(?:\\[A-Za-z]+\s*)?[A-Za-z](?:[\w' ]|\\max|\\min|\{|\})*(?:\([^()=]*\))?)\s*=(?!=)\s*"
)


def _with_thousands(wanted: str) -> str:
    """An expected answer with its thousands as single numbers: ``1,234``, but not the tuple ``(1,234)``."""

    def joined(match: re.Match[str]) -> str:
        before = wanted[: match.start()]
        depth = sum(before.count(bracket) for bracket in ("(", "[", r"\{"))
        depth -= sum(before.count(bracket) for bracket in (")", "]", r"\}"))
        # Where other commas have a space, those without one part thousands.
        return match[0].replace(",", "") if depth <= 0 or ", " in wanted else match[0]

    return _THOUSANDS.sub(joined, wanted)


def value_of(text: str, *, thousands: bool) -> Value:
    """A cleaned answer as its parts. With ``thousands``, ``1,234`` is one number and not two."""
    text = _MEMBER.sub("", text, count=1) if _MEMBER.match(text) else text
    if thousands:
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    parts = list(_parts(text))
    if len(parts) > 1:
        return _group("", parts, text)
    name = _NAMED.match(text)
    bare = text[name.end() :] if name is not None else text
    if _is_one_pair(bare.replace("\\{", "{").replace("\\}", "}")):
        if (inner := _SET.fullmatch(bare)) is not None:
            return _group("{}", list(_parts(inner[1] if inner[1] is not None else inner[2])), text)
        if bare[0] in "([" and bare[-1] in ")]":
            parts = list(_parts(bare[1:-1]))
            if len(parts) > 1:
                return _group(bare[0] + bare[-1], parts, text)
            return value_of(bare[1:-1].strip(), thousands=False)
    if text.count(r"\pm") == 1:
        return _group("", [bare.replace(r"\pm", sign).strip().removeprefix("+") for sign in "+-"], text)
    return text


def _group(brackets: str, parts: list[str], text: str) -> Value:
    """The parts as values. Lists in a list are one list, and a list of one is that one."""
    values: list[Value] = []
    for part in parts:
        value = value_of(part, thousands=False)
        values += value.parts if isinstance(value, Group) and not value.brackets else (value,)
    return values[0] if len(values) == 1 and brackets in ("", "{}") else Group(brackets, tuple(values), text)


def _parts(text: str) -> Iterator[str]:
    """What commas, semicolons, "and" and "or" part outside of any brackets."""
    depth, begin = 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth <= 0 and position >= begin and (joint := _JOINT.match(text, position)) is not None:
            if text[begin:position].strip():
                yield text[begin:position].strip()
            begin = joint.end()
    if text[begin:].strip():
        yield text[begin:].strip()


def _is_one_pair(text: str) -> bool:
    """Whether the bracket that begins a text is closed at its very end."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return position == len(text) - 1 > 0
    return False


def _is_equal(given: Value, right: Value, tolerance: float | None) -> bool:
    if isinstance(given, str) and isinstance(right, str):
        return _is_same(given, right, tolerance)
    if isinstance(given, str) or isinstance(right, str):
        # "x > 2" may be what the interval says.
        texts = [value if isinstance(value, str) else value.text for value in (given, right)]
        return any(re.search(r"[<>]|\\[lg]e |\\cup", text) for text in texts) and _sympy_is_same(*texts)
    if len(given.parts) != len(right.parts):
        return False
    if right.brackets not in ("", "{}"):
        if given.brackets not in ((right.brackets, "") if right.brackets == "()" else (right.brackets,)):
            return False
        return all(_is_equal(g, r, tolerance) for g, r in zip(given.parts, right.parts, strict=True))
    left = list(given.parts)
    for wanted in right.parts:
        match = next((part for part in left if _is_equal(part, wanted, tolerance)), None)
        if match is None:
            return False
        left.remove(match)
    return True


# The letters of an expected "6 m" and "3mg" are variables: the unit of an expected answer stands in its row.
_ENDS_IN_VARIABLE = re.compile(r"(?:(?<![A-Za-z\\])[A-Za-z]|(?<=[\d}])(?!cm|mm|km|kg)[A-Za-z]{2})\s*$")
# What makes "=" more than the steps of a computation: another relation, or a variable.
_NO_COMPUTATION = re.compile(r"[<>]|\\(?:[lg]e|neq?|equiv|sim)(?![A-Za-z])|(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")


def _is_same(given: str, right: str, tolerance: float | None) -> bool:
    """Whether two single values are equal: as text, as numbers, or as expressions."""
    if _without_spaces(given) == _without_spaces(right):
        return True
    named_given, named_right = _NAMED.match(given), _NAMED.match(right)
    if named_given is not None and named_right is not None and right.startswith("\\"):
        # The angle ABC is not the angle ACB; but x may be called n.
        names = {re.sub(r"[\s{}]", "", match[0]) for match in (named_given, named_right)}
        if len(names) > 1:
            return False
    if named_right is not None and "=" not in right[named_right.end() :]:
        right = right[named_right.end() :]
    if named_given is not None:
        given = given[named_given.end() :].rpartition("=")[2].strip()
    numbers = number_of(given), None if _ENDS_IN_VARIABLE.search(right) else number_of(right)
    if numbers[1] is not None and not _NO_COMPUTATION.search(given):
        given = given.rpartition("=")[2].strip() or given
        numbers = number_of(given), numbers[1]
    if numbers[0] is not None and numbers[1] is not None:
        return is_same_number(numbers[0], numbers[1], tolerance)
    # A number says what it is; only an expression needs more than that.
    if numbers[1] is not None and not re.search(r"[\\^*/+()!-]|\d\s*\d", given):
        return False
    return any(_sympy_is_same(text, right) for text in dict.fromkeys((given, without_unit(given))))


def _without_spaces(text: str) -> str:
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


_DECIMAL = re.compile(r"(?<![\w.])(\d+)\.(\d+)(?![\d.])")
_COMMAND_OR_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
# Letters that mean nothing by themselves to a reader of LaTeX.
_SPARE_LETTERS: Final = "abcjkmnpqrstuvwxyz"


def _with_case_as_letters(given: str, right: str) -> tuple[str, str]:
    """Both with other letters for the capitals of letters that one of them has in both cases.

    Expressions are compared without regard to case, so that ``2N`` is ``2n``; but ``R - r`` is not 0.
    """
    letters = [
        {match[0] for match in _COMMAND_OR_LETTER.finditer(text) if len(match[0]) == 1} for text in (given, right)
    ]
    capitals = sorted({letter for side in letters for letter in side if letter.isupper() and letter.lower() in side})
    used = {letter.lower() for side in letters for letter in side}
    others = dict(zip(capitals, (letter for letter in _SPARE_LETTERS if letter not in used), strict=False))
    given, right = (
        _COMMAND_OR_LETTER.sub(lambda match: others.get(match[0], match[0]), text) for text in (given, right)
    )
    return given, right


def _sympy_is_same(given: str, right: str) -> bool:
    # Slow to import, and only a worker needs it.
    from math_verify import LatexExtractionConfig, parse, verify

    # Neither of its timeouts, which it warns of: they are alarms that a computation in C does not hear.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # What it takes for units are also products of variables: "ab", "bc", "t".
    normal = replace(LatexExtractionConfig().normalization_config, units=False)
    config = [LatexExtractionConfig(normalization_config=normal)]

    def parsed(text: str) -> list[Any]:
        if number_of(text) is None:
            # With decimals sympy would compute in floating point, and 8778.0 / 154.0 would not be 57.
            text = _DECIMAL.sub(lambda match: rf"\frac{{{match[1]}{match[2]}}}{{1{'0' * len(match[2])}}}", text)
        return list(parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None))

    expressions, wanted = map(parsed, _with_case_as_letters(given, right))
    return bool(expressions and wanted) and verify(
        wanted,
        expressions,
        float_rounding=ROUNDED_DECIMALS,
        strict=True,
        allow_set_relation_comp=True,
        timeout_seconds=None,
    )
