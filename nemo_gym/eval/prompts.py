"""Prompt configs: a ``system`` and a ``user`` template that turn a raw row into a model's input. Pure."""

from __future__ import annotations

import difflib
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nemo_gym.errors import ConfigError

_PARTS: Final = ("system", "user")


@dataclass(frozen=True, slots=True)
class _Template:
    """A text with fields in it: each piece is literal text and the path of the field after it, if any."""

    pieces: tuple[tuple[str, tuple[str, ...] | None], ...]

    def fill(self, row: Mapping[str, Any]) -> str:
        texts = [literal if path is None else literal + _field_text(row, path) for literal, path in self.pieces]
        return "".join(texts)


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A parsed prompt config. ``where`` names it in messages."""

    where: str
    user: _Template
    system: _Template | None = None

    def input_for(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        """The ``input`` of a Responses API request for this row."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system.fill(row)}]
        messages.append({"role": "user", "content": self.user.fill(row)})
        return messages


def parse_prompt_config(content: Any, where: str) -> PromptTemplate:
    """The prompt config in ``content``: a mapping with ``user`` and, optionally, ``system``.

    In both, ``{field}`` stands for the row's field of that name, ``{a.b}`` for a field inside a nested one, and
    ``{{`` and ``}}`` for braces.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"Prompt config {where} must be a mapping with the key 'user' and, optionally, 'system'; "
            f"found {type(content).__name__}."
        )
    unknown = [str(key) for key in content if key not in _PARTS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], _PARTS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"Prompt config {where}: unknown key {', '.join(map(repr, unknown))}. It takes 'user' and 'system'.{hint}"
        )
    if content.get("user") is None:
        raise ConfigError(f"Prompt config {where} lacks 'user', the template of what the model is asked.")
    system = content.get("system")
    return PromptTemplate(
        where=where,
        user=_parse_template(content["user"], f"{where}: user"),
        system=None if system is None else _parse_template(system, f"{where}: system"),
    )


def _parse_template(text: Any, where: str) -> _Template:
    if not isinstance(text, str):
        raise ConfigError(f"Prompt config {where} must be a text; found {type(text).__name__}.")
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(
            f"Prompt config {where}: {error}. Write {{field}} for a row's field, and {{{{ or }}}} for a brace."
        ) from None
    pieces: list[tuple[str, tuple[str, ...] | None]] = []
    for literal, field, format_spec, conversion in parsed:
        if field is None:
            pieces.append((literal, None))
            continue
        path = tuple(field.split("."))
        if format_spec or conversion or not all(part.strip() == part and part for part in path) or "[" in field:
            shown = "{" + field + (f"!{conversion}" if conversion else "") + (f":{format_spec}" if format_spec else "")
            raise ConfigError(
                f"Prompt config {where}: {shown}}} is no field. Write {{field}} or {{field.inner}}, and {{{{ or }}}} "
                "for a brace."
            )
        pieces.append((literal, path))
    return _Template(tuple(pieces))


def _field_text(row: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value: Any = row
    for depth, key in enumerate(path):
        if not isinstance(value, Mapping) or key not in value:
            fields = ", ".join(sorted(map(str, value))) if isinstance(value, Mapping) else "no fields"
            owner = f"its {'.'.join(path[:depth])}" if depth else "the row"
            raise ConfigError(f"the prompt names {{{'.'.join(path)}}}, but {owner} has {fields}")
        value = value[key]
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(
        f"the prompt names {{{'.'.join(path)}}}, which is {'null' if value is None else type(value).__name__}; "
        "a prompt takes texts and numbers"
    )
