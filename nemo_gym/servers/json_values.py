"""JSON as it comes from outside: what a model said may hold half of a surrogate pair, or bytes that are no UTF-8."""

from __future__ import annotations

import json
from typing import Any

import orjson


def loads(body: bytes) -> Any:
    """The value of a JSON text; ``orjson.JSONDecodeError`` for what is none.

    A lone surrogate (``\\ud83d`` without its other half, which RFC 8259 allows in section 8.2) is no character, cannot
    be written as UTF-8, and becomes U+FFFD.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        if rb"\u" not in body:
            raise
        whole = _without_lone_surrogates(body)
        if whole is None:
            raise
        return orjson.loads(whole)


def loads_said(body: bytes) -> Any:
    """``loads`` for a model's answer, of which bytes that are no UTF-8 become U+FFFD too."""
    try:
        return loads(body)
    except orjson.JSONDecodeError:
        return loads(body.decode("utf-8", "replace").encode())


def _without_lone_surrogates(body: bytes) -> bytes | None:
    """The text with each lone surrogate replaced; None when something else is wrong with it too."""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # As UTF-16 two halves that belong together are one character, and a half alone is none.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
