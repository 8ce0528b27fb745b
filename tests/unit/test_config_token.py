"""The token between machines: from one environment variable, never shown."""

from __future__ import annotations

import pytest

from nemo_gym.config.token import token_of
from nemo_gym.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "token"),
    [({}, None), ({"NEMO_GYM_TOKEN": ""}, None), ({"NEMO_GYM_TOKEN": "4f=/+-._~"}, "4f=/+-._~")],
)
def test_from_the_environment(environ: dict[str, str], token: str | None) -> None:
    assert token_of(environ) == token


@pytest.mark.parametrize("token", ["hush hush", "hush\n", "\rhush", "hüsh", "hush\x7f", "hush\t"])
def test_one_that_no_header_can_carry(token: str) -> None:
    with pytest.raises(ConfigError, match=r"NEMO_GYM_TOKEN holds a space.*openssl rand -hex 32") as caught:
        token_of({"NEMO_GYM_TOKEN": token})
    assert "hush" not in str(caught.value)
    assert "hüsh" not in str(caught.value)
