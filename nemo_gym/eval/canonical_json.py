"""JSON that is read without loss and written the one way digests are made from. Pure.

The canonical form is what ``json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)`` gives,
in UTF-8. orjson writes the same bytes several times faster, with two exceptions, both of which show as a number
with an exponent in its output: whole numbers of more than 64 bits, which it reads as floats, and the exponents
themselves, whose spelling (``1e-5`` or ``1e-05``) is its own and differs between its versions. Such values take the
slow way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import orjson

# Text can match too ("3e8"); it then takes the slow way for nothing, with the same result.
_EXPONENT: Final = re.compile(rb"[0-9]e[-+0-9]")
_WIDE_INTEGER: Final = "Integer exceeds 64-bit range"


def loads_exact(text: bytes | str) -> Any:
    """The value of one JSON text, with whole numbers of any size kept. Raises ``ValueError``."""
    value = orjson.loads(text)
    return json.loads(text) if _EXPONENT.search(orjson.dumps(value)) else value


def read_canonical(text: bytes, finish: Callable[[Any], Any]) -> tuple[Any, bytes]:
    """``finish`` of the value of one JSON text, and its canonical JSON. One pass over ordinary values.

    ``finish`` may change the value it is given. Raises ``ValueError``, ``TypeError`` and what ``finish`` raises.
    """
    value = finish(orjson.loads(text))
    canonical = _dumps_fast(value)
    if canonical is None or _EXPONENT.search(canonical):
        value = finish(json.loads(text))
        canonical = _dumps_slowly(value)
    return value, canonical


def dumps_canonical(value: Any) -> bytes:
    """``value`` as canonical JSON. Raises ``TypeError`` for a value that JSON does not have."""
    canonical = _dumps_fast(value)
    return _dumps_slowly(value) if canonical is None or _EXPONENT.search(canonical) else canonical


def _dumps_fast(value: Any) -> bytes | None:
    """orjson's output, canonical but for exponents; None when the value has a number too wide for it."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        if _WIDE_INTEGER not in str(error):
            raise
        return None


def _dumps_slowly(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")
