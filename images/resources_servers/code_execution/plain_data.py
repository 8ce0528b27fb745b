"""Values as data that two processes can exchange though one of them lies: JSON in which every other type has a mark.

What comes back is built here from its parts, so that it has the methods of its type and no others. JSON's own values
stand for themselves; ``{"tuple": [1, 2]}`` and the like stand for the rest. A value of a subclass becomes one of its
base: a ``Counter`` a ``dict``, a named tuple a ``tuple``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

# Longer integers travel in hexadecimal: Python refuses to read many decimal digits.
_LONGEST_INT: Final = 64


class PlainDataError(ValueError):
    """A value that cannot travel, or data that are no value."""


class Unknown:
    """Stands for a value of a type that does not travel, such as a function. Equal to nothing else."""


def dumps(value: Any) -> bytes:
    """JSON of a message whose values ``encode`` made. ``PlainDataError`` where they are nested too deep."""
    try:
        return json.dumps(value, separators=(",", ":")).encode("ascii")
    except (RecursionError, ValueError) as error:
        raise PlainDataError(f"the value cannot be written: {error}") from None


def loads(data: bytes) -> Any:
    """The message in JSON that somebody else wrote; its values are for ``decode``."""
    try:
        return json.loads(data)
    except (RecursionError, ValueError) as error:
        raise PlainDataError(f"no JSON: {error}") from None


def encode(value: Any, *, strict: bool = True) -> Any:
    """A value as JSON can hold it. One that cannot travel is a ``PlainDataError``, or ``Unknown`` if not ``strict``."""
    try:
        return _encoded(value, strict)
    except RecursionError:
        raise PlainDataError("the value is nested too deep, or holds itself") from None


def decode(data: Any) -> Any:
    """The value that ``encode`` wrote, whoever says so; ``PlainDataError`` where it is none."""
    try:
        return _decoded(data)
    except PlainDataError:
        raise
    except (RecursionError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise PlainDataError(f"no value: {error}") from None


def _encoded(value: Any, strict: bool) -> Any:
    def parts(values: Any) -> list[Any]:
        return [_encoded(part, strict) for part in values]

    if value is None or isinstance(value, bool):
        return value
    for kind, encoded in _SCALARS:
        if isinstance(value, kind):
            return encoded(value)
    if isinstance(value, list):
        return parts(value)
    if isinstance(value, dict):
        return {"dict": [parts(item) for item in value.items()]}
    for kind, mark in _GROUPS:
        if isinstance(value, kind):
            return {mark: parts(value)}
    if strict:
        raise PlainDataError(f"a value of type {type(value).__name__} cannot be passed to a program")
    return {"unknown": None}


def _encoded_int(value: int) -> Any:
    plain = int.__index__(value)
    return plain if plain.bit_length() <= _LONGEST_INT else {"int": hex(plain)}


_SCALARS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (int, _encoded_int),
    (float, float.__float__),
    (str, str.__str__),
    (complex, lambda value: {"complex": [value.real, value.imag]}),
    ((bytes, bytearray), lambda value: {"bytes": value.hex()}),
    (Decimal, lambda value: {"decimal": str(value)}),
    (Fraction, lambda value: {"fraction": [_encoded_int(value.numerator), _encoded_int(value.denominator)]}),
    (range, lambda value: {"range": [_encoded_int(part) for part in (value.start, value.stop, value.step)]}),
)
_GROUPS: Final[tuple[tuple[Any, str], ...]] = (
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "frozenset"),
    (deque, "deque"),
    (KeysView, "keys"),
    (ValuesView, "values"),
    (ItemsView, "items"),
    # Generators and their like are read to their end: what a test does with them, it does with all of it.
    (Iterator, "iterator"),
)
_BUILT: Final[dict[str, Callable[[Any], Any]]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "keys": lambda parts: dict.fromkeys(parts).keys(),
    "values": lambda parts: dict(enumerate(parts)).values(),
    "items": lambda parts: dict(parts).items(),
    "iterator": iter,
    "complex": lambda parts: complex(*parts),
    "fraction": lambda parts: Fraction(*parts),
    "range": lambda parts: range(*parts),
    "dict": dict,
}
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "decimal": Decimal,
    "unknown": lambda nothing: Unknown(),
}


def _decoded(data: Any) -> Any:
    if isinstance(data, list):
        return [_decoded(part) for part in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise PlainDataError("an object with other than one key is no value")
    ((mark, content),) = data.items()
    if mark in _BUILT and isinstance(content, list):
        return _BUILT[mark](_decoded(content))
    if mark in _READ and isinstance(content, str | None):
        return _READ[mark](content)
    raise PlainDataError(f"{mark!r:.40} marks no value")
