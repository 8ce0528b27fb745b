"""Prompt configs: what a template may say, and what it makes of a row."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.eval.prompts import parse_prompt_config


def test_system_and_user_parts_become_messages() -> None:
    prompt = parse_prompt_config({"system": "Be {tone}.", "user": "{question} {{x}} {meta.level}"}, "p.yaml")
    row = {"tone": "brief", "question": "Why {braces}?", "meta": {"level": 3}}
    assert prompt.input_for(row) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why {braces}? {x} 3"},
    ]


def test_without_a_system_part_there_is_one_message() -> None:
    assert parse_prompt_config({"user": "{a}"}, "p").input_for({"a": 1.5}) == [{"role": "user", "content": "1.5"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be a mapping"),
        ("{question}", "must be a mapping"),
        ({}, "lacks 'user'"),
        ({"system": "x"}, "lacks 'user'"),
        ({"user": ["x"]}, "must be a text; found list"),
        ({"user": "x", "sytem": "y"}, "unknown key 'sytem'.*Did you mean 'system'"),
        ({"user": "{question"}, "Write {field} for a row's field"),
        ({"user": "a } b"}, "Write {field} for a row's field"),
        ({"user": "{}"}, "{} is no field"),
        ({"user": "{a!r}"}, "{a!r} is no field"),
        ({"user": "{a:>10}"}, "{a:>10} is no field"),
        ({"user": "{a[0]}"}, r"{a\[0\]} is no field"),
        ({"user": "{ a }"}, "{ a } is no field"),
    ],
)
def test_what_is_no_prompt_config_is_refused(content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_prompt_config(content, "p.yaml")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"b": 1, "c": 2}, "names {a.x}, but the row has b, c"),
        ({"a": {"y": 1}}, "names {a.x}, but its a has y"),
        ({"a": "text"}, "names {a.x}, but its a has no fields"),
        ({"a": {"x": None}}, "which is null"),
        ({"a": {"x": [1]}}, "which is list"),
        ({"a": {"x": True}}, "which is bool"),
    ],
)
def test_a_row_that_lacks_a_field_is_refused(row: dict[str, Any], message: str) -> None:
    prompt = parse_prompt_config({"user": "{a.x}"}, "p.yaml")
    with pytest.raises(ConfigError, match=message):
        prompt.input_for(row)
