"""JSON as it comes from outside, read and written by orjson, with what that alone does not take.

A model may say half of a surrogate pair, or bytes that are no UTF-8; whole numbers may have more than 64 bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

_LEAST, _MOST = -(2**63), 2**64 - 1
_WIDE_INTEGER: Final = "Integer exceeds 64-bit range"
_NINETEEN_DIGITS: Final = b"0" * 19
_DIGITS_AS_ZEROS: Final = bytes(ord("0") if chr(code).isdecimal() else code for code in range(128)) + bytes(128)


def loads(body: bytes) -> Any:
    """The value of a JSON text, whole numbers of any size kept; ``orjson.JSONDecodeError`` for what is none.

    A lone surrogate (``\\ud83d`` without its other half, which RFC 8259 allows in section 8.2) is no character, cannot
    be written as UTF-8, and becomes U+FFFD.
    """
    try:
        return _loads_exact(body)
    except orjson.JSONDecodeError:
        if rb"\u" not in body:
            raise
        whole = _without_lone_surrogates(body)
        if whole is None:
            raise
        return _loads_exact(whole)


def loads_said(body: bytes) -> Any:
    """``loads`` for a model's answer, of which bytes that are no UTF-8 become U+FFFD too."""
    try:
        return loads(body)
    except orjson.JSONDecodeError:
        return loads(body.decode("utf-8", "replace").encode())


def dumps(value: Any, *, default: Callable[[Any], Any] | None = None, option: int = 0) -> bytes:
    """``orjson.dumps``, with whole numbers of any size."""
    try:
        return orjson.dumps(value, default=default, option=option)
    except orjson.JSONEncodeError as error:
        if _WIDE_INTEGER not in str(error):
            raise
    more = None if default is None else lambda other: _spelled_out(default(other))
    return orjson.dumps(_spelled_out(value), default=more, option=option)


def _loads_exact(body: bytes) -> Any:
    value = orjson.loads(body)  # a whole number that is too wide for it is a float
    if not _may_hold_a_wide_integer(body):
        return value
    try:
        return json.loads(body)
    except RecursionError:  # orjson goes a little deeper
        return value


def _may_hold_a_wide_integer(body: bytes) -> bool:
    """Whether 19 digits stand together, not after a point; in a way that costs less than to read the text.

    Of so many digits two neighbours are among every ninth byte: many texts are known by a ninth of them.
    """
    if b"00" not in body[::9].translate(_DIGITS_AS_ZEROS):
        return False
    zeros = body.translate(_DIGITS_AS_ZEROS)
    start = zeros.find(_NINETEEN_DIGITS)
    while start > 0 and body[start - 1] == ord("."):
        start = zeros.find(_NINETEEN_DIGITS, start + len(_NINETEEN_DIGITS))
    return start >= 0


def _spelled_out(value: Any) -> Any:
    """The value with its wide integers as the text that they are written as."""
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        return orjson.Fragment(str(value))
    if isinstance(value, Mapping):
        return {key: _spelled_out(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled_out(item) for item in value]
    return value


def _without_lone_surrogates(body: bytes) -> bytes | None:
    """The text with each lone surrogate replaced; None when something else is wrong with it too."""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # As UTF-16 two halves that belong together are one character, and a half alone is none.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
