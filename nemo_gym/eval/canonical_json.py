"""JSON that is read without loss and written the one way digests are made from. Pure.

The canonical form is what ``json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)`` gives,
in UTF-8. orjson writes the same bytes several times faster, with exceptions that show in its output. As a number with
an exponent: whole numbers of more than 64 bits, which it reads as floats, and the exponents themselves, whose spelling
(``1e-5`` or ``1e-05``) is its own and differs between its versions. As a number that begins with ``0.0000``: floats
for which Python takes an exponent already. Such values take the slow way. So does what orjson writes as ``null`` though
it is none: NaN and infinity, which the standard library then refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import orjson

# A digit, "e", and a digit or sign; spelt so that the search begins at each "e", which is several times faster.
# Text can match too ("3e8"); it then takes the slow way for nothing, with the same result.
_EXPONENT: Final = re.compile(rb"e[-+0-9](?<=[0-9]e.)")
_SMALL: Final = b"0.0000"
_NULL: Final = b"null"
# Refused, rather than turned into something that reads back as another value.
_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_WIDE_INTEGER: Final = "Integer exceeds 64-bit range"


def loads_exact(text: bytes | str) -> Any:
    """The value of one JSON text, with whole numbers of any size kept. Raises ``ValueError``."""
    value = orjson.loads(text)
    try:
        return json.loads(text) if _EXPONENT.search(orjson.dumps(value)) else value
    except (TypeError, RecursionError):  # all that is wrong with a value that was just read
        raise ValueError("it is nested too deeply") from None


def read_canonical(text: bytes, finish: Callable[[Any], Any]) -> tuple[Any, bytes]:
    """``finish`` of the value of one JSON text, and its canonical JSON. One pass over ordinary values.

    ``finish`` may change the value it is given. Raises ``ValueError``, ``TypeError`` and what ``finish`` raises.
    """
    value = finish(orjson.loads(text))
    canonical = _dumps_fast(value)
    if canonical is None or _is_own_spelling(canonical):
        value = finish(json.loads(text))
        canonical = _dumps_slowly(value)
    return value, canonical


def dumps_canonical(value: Any) -> bytes:
    """``value`` as canonical JSON. Raises ``TypeError`` or ``ValueError`` for a value that JSON does not have.

    A UUID and an ``enum`` are no such values: their text and their value are written.
    """
    canonical = _dumps_fast(value)
    if canonical is None or _is_own_spelling(canonical):
        return _dumps_slowly(value)
    return _dumps_slowly(value) if _NULL in canonical and orjson.loads(canonical) != value else canonical


def _is_own_spelling(written: bytes) -> bool:
    """Whether orjson may have written a number otherwise than the standard library does."""
    return _SMALL in written or _EXPONENT.search(written) is not None


def _dumps_fast(value: Any) -> bytes | None:
    """orjson's output, canonical but for some numbers; None when the value has a number too wide for it."""
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except orjson.JSONEncodeError as error:
        if _WIDE_INTEGER not in str(error):
            raise
        return None


def _dumps_slowly(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")
