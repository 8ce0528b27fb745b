"""Numbers as people write them, exactly: whole, decimal, fraction, mixed, percent, in powers of ten, with a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

ROUNDED_DECIMALS: Final = 6
"""A decimal that is given for a value without an end must agree with it to so many places."""


@dataclass(frozen=True)
class Number:
    value: Fraction
    is_percent: bool = False
    decimals: int = 0


_DIGITS = r"\d+(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"""
    (?P<sign>[-+]?) \s*
    (?: (?:(?P<whole>\d+)\s*(?:\s|(?=\\)))? (?:\\frac\s*\{{\s*(?P<above>-?\d+)\s*\}}\s*\{{\s*(?P<below>\d+)\s*\}}
          | (?P<over>\d+)\s*/\s*(?P<under>\d+))
      | (?P<decimal>{_DIGITS}) (?: \s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{{?\s*(?P<power>[-+]?\d{{1,3}})\s*\}}?
          | [eE](?P<exponent>[-+]?\d{{1,3}}) | \s*(?P<scale>thousand|million|billion) )?
    )
    \s* (?P<percent>\\?%|percent\b)? \s* (?P<unit>(?:[A-Za-z][A-Za-z.]*+(?:\s*\^\s*\{{?[23]\}}?)?[\s/-]*+)*+)
    """,
    re.VERBOSE,
)
_SCALES: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
# What follows a number and changes it, is no unit of it. A single letter is a variable unless it stands apart.
_NO_UNITS = re.compile(
    r"\b(?:pi|sqrt|log|ln|sin|cos|tan|exp|mod|choose|factorial|[abeiknxyz]|to|plus|minus|times|over|and|or|not|is|if|of"
    r"|dozen|half|halves|thirds?|quarters?|hundred|trillion)\b|^(?:squared|cubed)\b",
    re.IGNORECASE,
)
# Longer words are taken for units; of short ones only these, since "ab" and "xy" are products.
_SHORT_UNITS: Final = frozenset({
    "m", "s", "h", "g", "l", "cm", "mm", "km", "dm", "ft", "in", "yd", "mi", "sq", "kg", "mg", "lb", "lbs", "oz", "ml",
    "cl", "dl", "gal", "pt", "qt", "hr", "hrs", "min", "sec", "yr", "yrs", "am", "pm", "mph", "kmh", "kph", "rpm",
    "deg", "rad", "cal", "usd", "eur", "gbp", "cts", "pts", "pcs", "per", "all", "day", "men", "man", "boy", "kid",
    "cat", "dog", "cow", "pig", "hen", "hat", "bag", "box", "can", "jar", "cup", "egg", "pie", "car", "bus", "pen",
    "toy", "row", "lap", "way",
})  # fmt: skip


def number_of(text: str) -> Number | None:
    """A number that is written out, exactly: whole, decimal, fraction, mixed, percent, with a unit after it."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not _is_unit(match["unit"], text):
        return None
    if match["decimal"] is not None:
        value = Fraction(match["decimal"]) * Fraction(10) ** int(match["power"] or match["exponent"] or 0)
        value *= _SCALES.get(match["scale"] or "", 1)
    else:
        below = int(match["below"] or match["under"])
        if below == 0:
            return None
        value = Fraction(int(match["above"] or match["over"]), below) + int(match["whole"] or 0)
    decimals = len((match["decimal"] or "").partition(".")[2])
    return Number(-value if match["sign"] == "-" else value, match["percent"] is not None, decimals)


def _is_unit(unit: str, text: str) -> bool:
    if not unit:
        return True
    word = re.split(r"[^A-Za-z]", unit)[0]
    is_apart = text[: len(text) - len(unit)].endswith(" ") or len(word) > 1
    return is_apart and (len(word) > 3 or word.lower() in _SHORT_UNITS) and _NO_UNITS.search(unit) is None


_UNIT_AT_END = re.compile(r"(?<=\s)(?:[A-Za-z][A-Za-z.]++(?:\s*\^\s*\{?[23]\}?)?[\s/-]*+)++$")


def without_unit(text: str) -> str:
    """An expression without the unit that it ends in."""
    match = _UNIT_AT_END.search(text)
    return text[: match.start()].strip() if match is not None and _is_unit(match[0], text) else text


def is_same_number(given: Number, right: Number, tolerance: float | None) -> bool:
    values = [given.value]
    if given.is_percent != right.is_percent:
        # 50 % is a half, and the 50 that was asked for in percent.
        values.append(given.value / 100 if given.is_percent else given.value * 100)
    slack = Fraction(tolerance).limit_denominator(10**12) if tolerance is not None else Fraction(0)
    if given.decimals >= ROUNDED_DECIMALS and not _terminates(right.value):
        slack = max(slack, Fraction(1, 2 * 10**given.decimals))
    return any(abs(value - right.value) <= slack for value in values)


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


_UNITS: Final = {
    "minute": "min", "minutes": "min", "mins": "min", "hours": "h", "hour": "h", "hr": "h", "hrs": "h", "seconds": "s",
    "second": "s", "sec": "s", "kilometers": "km", "kilometres": "km", "kilometer": "km", "meters": "m", "metres": "m",
    "meter": "m", "centimeters": "cm", "centimetres": "cm", "percent": "%", "degrees": "", "degree": "", "kmh": "km/h",
    "km/hr": "km/h", "kilometers per hour": "km/h", "km per hour": "km/h", "square centimeters": "cm^2",
}  # fmt: skip


def _plain_unit(unit: str) -> str:
    plain = re.sub(r"[{}$]", "", unit.lower()).strip(" .")
    plain = re.sub(r"\s*\^\s*", "^", plain)
    return _UNITS.get(plain, plain)


def has_another_unit(given: str, unit: str) -> bool:
    """Whether a value ends in a unit, and not in ``unit``, cleaned as answers are."""
    match = _NUMBER.fullmatch(given)
    named = match["unit"].strip() if match is not None else ""
    return bool(named) and _plain_unit(named) != _plain_unit(unit)
