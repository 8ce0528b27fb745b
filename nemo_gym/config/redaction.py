"""Hiding secrets before a config or a log is shown, written or served. Pure.

Which keys hold secrets is judged by ``secret_keys``. Everything below a secret key is secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from nemo_gym.secret_keys import is_secret_key

MASK = "***"


_SCHEME_VALUE = re.compile(r"\b(Bearer|Basic)\s+([A-Za-z0-9._~+/=-]{6,})", re.IGNORECASE)
# a scheme is short; without a bound a long word would be tried again from each of its letters
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31}://)(?P<info>[^\s/?#\"'<>]+)@")
_ASSIGNMENT = re.compile(r"(?P<lead>^|[?&;,\s\"'])(?P<name>[^=?&;,#\s\"']+)=(?P<value>[^&;,#\s\"'<>]+)")
# Not a secret yet: to be set, or a plain reference to the key that holds it.
_PLACEHOLDER = re.compile(r"(?:\?\?\?|\$\{[\w.\[\]-]+\})?")
# Shorter ones are replaced only where they stand alone, as they would turn up inside ordinary words.
_ANYWHERE_FROM = 6
# In configs other values are searched for known secrets of at least this length only.
_ELSEWHERE_FROM = 8


def redact_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``config`` that may be shown: the same keys, with secrets replaced by ``***``.

    Also hidden are user info and secret parameters in URLs, ``api_key=...``, ``Bearer`` and ``Basic`` values, and
    the values of secret keys where they appear inside other texts. ``???``, ``${references}``, None and empty
    texts stay.
    """
    long = [secret for secret in find_secrets(config) if len(secret) >= _ELSEWHERE_FROM]
    return {key: _redact(value, is_secret_key(str(key)), long) for key, value in config.items()}


def _redact(node: Any, secret: bool, known: list[str]) -> Any:
    if isinstance(node, Mapping):
        return {key: _redact(value, secret or is_secret_key(str(key)), known) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_redact(value, secret, known) for value in node]
    if node is None or isinstance(node, bool):
        return node
    if secret:
        return node if _is_placeholder(node) else MASK
    return redact_text(node, known) if isinstance(node, str) else node


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and _PLACEHOLDER.fullmatch(value) is not None


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without any of ``secrets``, as they are, URL-quoted or JSON-escaped, and without what is secret by
    its form: user info and secret parameters in URLs, ``Bearer`` and ``Basic`` values.
    """
    spellings = {spelling for secret in secrets if _is_worth_hiding(secret) for spelling in _spellings(secret)}
    for spelling in sorted(spellings, key=len, reverse=True):
        if spelling not in text:
            continue
        if len(spelling) >= _ANYWHERE_FROM:
            text = text.replace(spelling, MASK)
        else:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(spelling)}(?![A-Za-z0-9])", MASK, text)
    if "://" in text:
        text = _USER_INFO.sub(rf"\g<scheme>{MASK}@", text)
    text = _SCHEME_VALUE.sub(rf"\1 {MASK}", text)  # before what would take the scheme for the value
    return _ASSIGNMENT.sub(_redact_assignment, text) if "=" in text else text


def _assigns_secret(match: re.Match[str]) -> bool:
    """Whether ``api_key=...`` gives a secret away; a lone ``key=`` or ``token=`` does so only in a URL."""
    name = unquote(match["name"])
    return is_secret_key(name) and (match["lead"] in ("?", "&") or name.lower() not in ("key", "token"))


def _redact_assignment(match: re.Match[str]) -> str:
    shown = MASK if _assigns_secret(match) else match["value"]
    return f"{match['lead']}{match['name']}={shown}"


def _is_worth_hiding(secret: str) -> bool:
    """A word of one or two characters and a small number are no secrets, and stand all over a log."""
    return len(secret) >= (4 if secret.isdecimal() else 3)


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield json.dumps(secret)[1:-1]
    # A log is cut into lines, and so is a key file that it quotes.
    yield from (line.strip() for line in secret.splitlines() if len(line.strip()) >= _ELSEWHERE_FROM)


def find_secrets(config: Mapping[str, Any]) -> set[str]:
    """The secret values that ``config`` holds, to be taken out of logs and messages with ``redact_text``."""
    return set(_find(config, secret=False))


def _find(node: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _find(value, secret=secret or is_secret_key(str(key)))
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _find(value, secret=secret)
    elif node is None or isinstance(node, bool) or _is_placeholder(node):
        return
    elif secret:
        yield str(node)
        if isinstance(node, str) and (scheme := _SCHEME_VALUE.fullmatch(node.strip())):
            yield scheme[2]
    elif isinstance(node, str):
        yield from _secrets_in_text(node)


def _secrets_in_text(text: str) -> Iterator[str]:
    for match in _USER_INFO.finditer(text):
        user, _, password = match["info"].partition(":")
        yield from (part for part in (match["info"], unquote(password)) if part != user or not password)
    for match in _ASSIGNMENT.finditer(text):
        if _assigns_secret(match):
            yield unquote(match["value"])
    for match in _SCHEME_VALUE.finditer(text):
        yield match[2]
