"""What a judge is asked: templates whose fields are filled with a row's texts and the model's answer. Pure.

What is put into a template is data: it is put in once, and never read as a template itself.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from nemo_gym.servers.messages import JsonDict

RESPONSE = "response"
FENCE = "fence"
FIRST = "first"
SECOND = "second"

_FENCE_DIGITS = 12


class JudgeTemplate:
    """A text with fields in it: ``{name}``, ``{a.b}`` for one inside another, ``{{`` and ``}}`` for braces."""

    def __init__(self, text: str) -> None:
        """Raises ``ValueError``, with a sentence, for a text that is no template."""
        self._pieces: list[tuple[str, str | None]] = []
        for literal, field, format_spec, conversion in string.Formatter().parse(text):
            if field is not None and (format_spec or conversion or not _is_path(field)):
                shown = field + (f"!{conversion}" if conversion else "") + (f":{format_spec}" if format_spec else "")
                raise ValueError(
                    f"{{{shown}}} is no field. Write {{field}} or {{field.inner}}, and {{{{ or }}}} for a brace"
                )
            self._pieces.append((literal, field))

    @property
    def fields(self) -> list[str]:
        """The fields that it names, each once."""
        return list(dict.fromkeys(field for _, field in self._pieces if field is not None))

    def fill(self, texts: Mapping[str, str]) -> str:
        """The text with each field replaced."""
        return "".join(literal if field is None else literal + texts[field] for literal, field in self._pieces)


def _is_path(field: str) -> bool:
    return all(step and step == step.strip() and "[" not in step for step in field.split("."))


class FieldError(Exception):
    """A row lacks a field that the judge's prompt names, or has something in it that is no text."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def field_text(row: Mapping[str, Any], field: str) -> str:
    """A row's field as text: a text or a number, or a list of texts with one a line; else a ``FieldError``."""
    value: Any = row
    for step in field.split("."):
        if not isinstance(value, Mapping) or step not in value:
            raise FieldError(field, "the judge's prompt names this field, and the row has no such field")
        value = value[step]
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "\n".join(f"- {item}" for item in value)
    found = "null" if value is None else type(value).__name__
    raise FieldError(field, f"the judge's prompt needs a text, a number or a list of texts here; found {found}")


def shortened(text: str, limit: int) -> tuple[str, int]:
    """A text of ``limit`` characters at most, and how many were left out of its middle, which a mark there says."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text, 0
    # The answer proper tends to stand at the end, what it is about at the beginning.
    head = text[: limit // 2]
    tail = text[len(text) - (limit - len(head)) :]
    return f"{head}\n[... {left_out} characters left out ...]\n{tail}", left_out


def fence_for(*texts: str) -> str:
    """A line that stands in none of the texts, to show where each begins and ends.

    It holds a digest of them, so that no answer can have it in itself and end its own quotation. The same texts
    always get the same one, so that the same question to a judge is the same request.
    """
    digest = sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:_FENCE_DIGITS]
    return f"-----{digest}-----"


def messages_of(system: str | None, user: str) -> list[JsonDict]:
    """The ``input`` of a Responses API request."""
    messages: list[JsonDict] = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": user}]
