from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config import ConfigError
from nemo_gym.config.yaml_files import (
    dump_yaml,
    load_yaml_file,
    parse_yaml_dict,
    parse_yaml_value,
    parse_yaml_word,
)

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
CONFIGS = st.dictionaries(st.text(max_size=6), TREES, max_size=5)


# Each line repeats the one before ten times.
BOMB = "l0: &l0 [1]\n" + "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))


def refusal(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml_dict(text, where="f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1_000", 1000),
        ("0x1F", 31),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("true", True),
        ("no", False),
        ("~", None),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2024-01-02", "2024-01-02"),
        ("1.2.3", "1.2.3"),
        ("0x_", "0x_"),
        ("???", "???"),
        ("${a.b}", "${a.b}"),
    ],
)
def test_values_are_read_as_people_mean_them(text: str, value: object) -> None:
    assert parse_yaml_dict(f"a: {text}", where="f")["a"] == value
    assert type(parse_yaml_dict(f"a: {text}", where="f")["a"]) is type(value)
    assert parse_yaml_word(text) == value


def test_a_word_keeps_what_yaml_would_take_for_syntax() -> None:
    for text in ("a: b # c", "*x", "&x", "!x", "- a", "%", ".nan", "=", "<<", "http://h:1/v1"):
        assert parse_yaml_word(text) == text


def test_keys_are_the_text_as_written() -> None:
    assert parse_yaml_dict("1: a\non: b\nnull: c\n1.0: d\n'x y': e", where="f") == {
        "1": "a",
        "on": "b",
        "null": "c",
        "1.0": "d",
        "x y": "e",
    }


def test_merge_keys_and_anchors_work() -> None:
    assert parse_yaml_dict("b: &q {x: 1, y: 1}\nc: {<<: *q, y: 2}", where="f")["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "\ufeff"])
def test_an_empty_file_is_an_empty_dict(text: str) -> None:
    assert parse_yaml_dict(text.encode(), where="f") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a: 1\nb: 2\na: 3\n",
            "f.yaml, line 3, column 1: not valid YAML: the key 'a' stands here again (first on line 1).",
        ),
        (
            "a:\n  b: {c: 1, c: 2}",
            "f.yaml, line 2, column 13: not valid YAML: the key 'c' stands here again (first on line 2).",
        ),
        ("a: [1\nb: 2", "f.yaml, line 2, column 2"),
        ("a: {x: ???}", "Put ??? in quotes here."),
        ("a: {x: ${b}}", "Put ${...} in quotes here."),
        ("a:\n\t- b", "YAML is indented with spaces, not tabs."),
        ("- 1", "f.yaml: the top level must be `key: value` pairs; found a list."),
        ("just text", "f.yaml: the top level must be `key: value` pairs; found a text."),
        ("? [a]\n: 1", "f.yaml, line 1, column 3: not valid YAML: a key must be a text, not a list or a dict."),
        ("a: 1\nb: \x00", "f.yaml, line 2, column 4: not valid YAML: a text file has no character '\\x00'."),
        ("a: !!int x", "f.yaml, line 1, column 4: not valid YAML: invalid literal"),
        ("a: !!python/object/apply:os.getcwd []", "f.yaml, line 1, column 4: not valid YAML: could not determine"),
        ("a: &x [*x]", "f.yaml: a[0] contains itself, through an anchor and its alias."),
        ("a: [.nan]", "f.yaml: a[0] is nan; needed: a finite number, or null."),
        ("a: {b: !!set {x}}", "f.yaml: a.b is a set; a config holds"),
        ("a: " + "[" * 5000, "f.yaml"),
        (BOMB, "f.yaml: more than 1000000 values, counting those that anchors repeat."),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, expected: str) -> None:
    assert expected in refusal(text)


def test_other_encodings_are_refused_with_their_place() -> None:
    message = refusal("a: 1\nb: né\n".encode("latin-1"))
    assert "f.yaml, line 2, column 5: byte 0xe9 is not UTF-8" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the config file .*gone\.yaml: No such file"):
        load_yaml_file(tmp_path / "gone.yaml")
    (tmp_path / "x.yaml").write_text("a: ä\n", encoding="utf-8")
    assert load_yaml_file(tmp_path / "x.yaml") == {"a": "ä"}


@settings(deadline=None, max_examples=150)
@given(CONFIGS)
def test_dumped_yaml_reads_back_the_same(config: dict[str, Any]) -> None:
    text = dump_yaml(config)
    assert parse_yaml_dict(text, where="f") == config
    assert yaml.safe_load(text) == config


@pytest.mark.parametrize("text", ["1e3", "1e-5", "010", "1:30", "2024-01-02", "on", "0x1f", ".5", "=", "<<", "~", ""])
def test_texts_that_look_like_something_else_are_quoted(text: str) -> None:
    dumped = dump_yaml({"a": text, text: 1})
    assert parse_yaml_value(dumped, where="f") == yaml.safe_load(dumped) == {"a": text, text: 1}


def test_a_dump_has_no_anchors_and_keeps_the_order() -> None:
    shared = [1]
    assert dump_yaml({"b": shared, "a": shared}) == "b:\n- 1\na:\n- 1\n"
