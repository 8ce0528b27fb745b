from __future__ import annotations

import pytest

from nemo_gym.secret_keys import is_secret_key


@pytest.mark.parametrize(
    "key",
    [
        "policy_api_key",
        "openai_api_key",
        "api-key",
        "apiKey",
        "API_KEY",
        "OPENAI_API_KEY",
        "key",
        "hf_token",
        "hfToken",
        "access_token",
        "token",
        "client_secret",
        "secret",
        "session_secret",
        "db_password",
        "password",
        "PASSWORD",
        "passwd",
        "credentials",
        "credential",
        "Authorization",
        "X-Auth-Token",
        "X-API-Key",
        "authorization_header",
        "api_keys",
        "access_tokens",
        "apikey",
        "accessToken",
        "private_key",
        "secret_key",
        "secretKey",
        "aws_secret_access_key",
        "passphrase",
        "bearer_token",
        "webhook_key",
        "HFToken",
        "judge_key",
    ],
)
def test_keys_that_hold_secrets(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "max_output_tokens",
        "max_tokens",
        "num_tokens",
        "tokens",
        "tokenizer",
        "tokenize",
        "key_metrics",
        "keys",
        "keyboard",
        "monkey",
        "turkey",
        "primary_key",
        "foreign_key",
        "sort_key",
        "group_key",
        "cache_key",
        "public_key",
        "eos_token",
        "pad_token",
        "stop_token",
        "max_token",
        "secretary",
        "passwordless_login_url_count",
        "keyword",
        "keywords",
        "authors",
        "author",
        "token_count",
        "key_name",
        "hockey",
        "policy_model_name",
        "policy_base_url",
        "entrypoint",
        "num_repeats",
        "answer_key",
        "input_key",
        "key_id",
        "max_tokens_field",
        "expected_answer_keys",
    ],
)
def test_keys_that_only_look_like_it(key: str) -> None:
    assert not is_secret_key(key)
