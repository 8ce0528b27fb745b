"""Which names in a config, in headers or in URLs speak of secrets. Pure.

Judged by whole words (``policy_api_key``, ``hfToken``, ``X-Auth-Token``), so that ``max_output_tokens``, ``tokenizer``
or ``key_metrics`` are none. Everything below a secret key is secret.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Secret wherever they stand in a key.
_STRONG = _words(
    """password passwd passphrase pwd secret secrets credential credentials authorization bearer apikey apikeys
    accesskey secretkey privatekey accesstoken authtoken refreshtoken"""
)
# Secret when a key ends with one of these, unless the word before it says that something else is meant.
_HARMLESS_BEFORE = {
    "key": _words(
        """primary foreign sort partition group cache public unique composite index id row column field dict json
        map metric dataset sample task input output question answer prompt label target image text config data
        lookup routing hash"""
    ),
    "token": _words(
        """eos bos pad unk sep cls mask stop start end think image audio video special first last next per num max
        min n count total prefix suffix begin control newline"""
    ),
}
# In the plural they mostly count or name things: secret only after one of these.
_PLURAL = _words("keys tokens")
_SECRET_BEFORE_PLURAL = _words("api access auth bearer refresh private session secret service hf")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def is_secret_key(key: str) -> bool:
    """Whether what stands under ``key`` is to be hidden."""
    words = [word.lower() for word in _WORD.findall(key)]
    if not words:
        return False
    if _STRONG.intersection(words):
        return True
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _HARMLESS_BEFORE:
        return before not in _HARMLESS_BEFORE[last]
    return last in _PLURAL and before in _SECRET_BEFORE_PLURAL
