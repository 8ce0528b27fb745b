from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config.redaction import MASK, find_secrets, redact_config, redact_text


def test_everything_below_a_secret_key_is_hidden() -> None:
    config = {
        "policy_api_key": "sk-1",
        "credentials": {"user": "u", "pins": [1, {"deep": "x"}], "on": True, "none": None},
        "api_keys": ["a1", "b2"],
        "max_output_tokens": 5,
        "servers": [{"token": "t", "host": "h"}],
    }
    before = copy.deepcopy(config)
    assert redact_config(config) == {
        "policy_api_key": MASK,
        "credentials": {"user": MASK, "pins": [MASK, {"deep": MASK}], "on": True, "none": None},
        "api_keys": [MASK, MASK],
        "max_output_tokens": 5,
        "servers": [{"token": MASK, "host": "h"}],
    }
    assert config == before


def test_what_is_no_secret_yet_stays_readable() -> None:
    config = {"a_key": "???", "b_key": "${policy_api_key}", "c_key": "", "d_key": None}
    assert redact_config(config) == config
    assert find_secrets(config) == set()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host:1/v1", "https://***@host:1/v1"),
        ("see http://tok123@h/x and https://u:p@q", "see http://***@h/x and https://***@q"),
        ("postgresql+psycopg://u:p%40ss@db/x", "postgresql+psycopg://***@db/x"),
        ("http://h/x?api_key=abc&n=1&access_token=d#f", "http://h/x?api_key=***&n=1&access_token=***#f"),
        ("run with API_KEY=abc, X=1 and n=2", "run with API_KEY=***, X=1 and n=2"),
        ("key=policy_base_url token=3", "key=policy_base_url token=3"),
        ("http://h/x?max_tokens=5", "http://h/x?max_tokens=5"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic ***"),
        ("Authorization=Bearer abc.def-123 n=1", "Authorization=*** *** n=1"),
        ("http://h:8000/v1/models/a@b", "http://h:8000/v1/models/a@b"),
        ("a basic test, bearer of news", "a basic test, bearer of news"),
        ("mail me@x.org", "mail me@x.org"),
    ],
)
def test_secrets_by_their_form(text: str, shown: str) -> None:
    assert redact_config({"note": text, "l": [text]}) == {"note": shown, "l": [shown]}
    assert redact_text(text) == shown


def test_a_secret_is_hidden_where_it_appears_in_other_values() -> None:
    config = {
        "policy_api_key": "sk-abcdef123",
        "note": "use sk-abcdef123 here",
        "short_key": "app",
        "entrypoint": "app.py",
    }
    assert redact_config(config) == {
        "policy_api_key": MASK,
        "note": "use *** here",
        "short_key": MASK,
        "entrypoint": "app.py",
    }


def test_secrets_of_a_config() -> None:
    config = {
        "api_key": "sk-1",
        "header_token": "Bearer abcdef1",
        "pin_secret": 1234,
        "l": [{"password": "p w"}],
        "url": "https://user:p%40ss@h/?token=qq",
        "other": "Bearer zzzzzzz",
    }
    assert find_secrets(config) == {
        "sk-1",
        "Bearer abcdef1",
        "abcdef1",
        "1234",
        "p w",
        "user:p%40ss",
        "p@ss",
        "qq",
        "zzzzzzz",
    }


def test_text_is_rid_of_secrets_in_every_spelling() -> None:
    secret = 'a"b/c d\ne-long-line'
    text = f"raw {secret} | json {json.dumps(secret)} | url a%22b%2Fc%20d%0Ae-long-line | line e-long-line"
    assert redact_text(text, [secret]) == f'raw {MASK} | json "{MASK}" | url {MASK} | line {MASK}'


def test_longer_secrets_go_first_and_short_ones_only_where_they_stand_alone() -> None:
    assert redact_text("secret-12 secret-1", ["secret-1", "secret-12"]) == f"{MASK} {MASK}"
    assert redact_text("key=abc, abcd, xabc", ["abc"]) == f"key={MASK}, abcd, xabc"
    assert redact_text("nothing x 5", ["", "x", "5"]) == "nothing x 5"
    assert redact_text("pin 1234 of 12345", ["1234"]) == f"pin {MASK} of 12345"


LETTERS = "abcdefghij0123456789"


@settings(deadline=None, max_examples=100)
@given(st.text(LETTERS, min_size=8, max_size=20), st.text(LETTERS, max_size=10), st.integers(0, 3))
def test_no_secret_survives_redaction(secret: str, around: str, depth: int) -> None:
    node: Any = {"api_key": secret, "text": f"{around} {secret} {around}", "list": [f"{secret}{around}"]}
    for level in range(depth):
        node = {f"level_{level}": [node]}
    config = {"top": node}
    assert secret not in json.dumps(redact_config(config))
    assert find_secrets(config) == {secret}
    assert secret not in redact_text(f"{around}{secret}{around}", find_secrets(config))
    assert redact_config(redact_config(config)) == redact_config(config)


def test_a_long_word_takes_no_longer_than_its_length() -> None:
    began = time.process_time()
    long = "x" * 1_000_000
    assert redact_config({"text": long, "url": f"https://me:secret@{long}"})["text"] == long
    assert time.process_time() - began < 30
