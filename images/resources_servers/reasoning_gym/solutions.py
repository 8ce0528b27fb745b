"""What a full score takes of an answer where the generator's own scorer also gives it for what solves nothing.

The scorers of reasoning-gym 0.1.25 take, for a full score: of ``puzzle24`` any four numbers that make 24.9; of
``countdown`` what is near enough; of ``coin_flip`` the first digits of the right answer, such as ``0``; ``nan`` in
``complex_arithmetic`` and ``number_sorting``; any number in ``calendar_arithmetic`` where the right one is negative;
any words in ``polynomial_equations`` where there is no solution; and any answer at all in ``game_of_life_halting``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

Entry = Mapping[str, Any]

_OPERATIONS: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COIN_FLIP_SLACK: Final = Fraction(1, 10_000)


def solves(generator: str, answer: str, entry: Entry) -> bool:
    """Whether an answer to which the generator's scorer gave a full score may have it."""
    check = _CHECKS.get(generator)
    try:
        return check is None or check(answer, entry)
    except (ValueError, ArithmeticError, SyntaxError):
        return False


def value_of(expression: str) -> Fraction:
    """What whole numbers, ``+ - * /`` and brackets make, exactly. ``ValueError`` when there is more than these."""
    if not re.fullmatch(r"[0-9\s+\-*/()]+", expression):
        raise ValueError(f"more than arithmetic: {expression}")
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"no arithmetic: {type(node).__name__}")


def _makes(answer: str, numbers: list[int], target: int) -> bool:
    return sorted(map(int, re.findall(r"\d+", answer))) == sorted(numbers) and value_of(answer) == target


def _is_near(answer: str, entry: Entry) -> bool:
    given, right = (Fraction(text.replace(",", "")) for text in (answer, entry["answer"]))
    return abs(given - right) <= _COIN_FLIP_SLACK


def _says_none(answer: str, entry: Entry) -> bool:
    return entry["answer"] != "" or not answer.strip("'\"` \t\n")


def _is_same(answer: str, entry: Entry) -> bool:
    given, right = answer.strip().casefold(), str(entry["answer"]).strip().casefold()
    return given == right or int(given) == int(right)


def _has_no_nan(answer: str, entry: Entry) -> bool:
    return "nan" not in answer.casefold()


_CHECKS: Final[dict[str, Callable[[str, Entry], bool]]] = {
    "puzzle24": lambda answer, entry: _makes(answer, entry["metadata"]["numbers"], 24),
    "countdown": lambda answer, entry: _makes(answer, entry["metadata"]["numbers"], entry["metadata"]["target"]),
    "coin_flip": _is_near,
    "complex_arithmetic": _has_no_nan,
    "number_sorting": _has_no_nan,
    "calendar_arithmetic": _is_same,
    "polynomial_equations": _says_none,
    "game_of_life_halting": lambda answer, entry: answer.casefold() == str(entry["answer"]).casefold(),
}
