"""The token that servers ask for, and callers send, when it is not only this machine that reaches them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nemo_gym.errors import ConfigError

TOKEN_VARIABLE: Final = "NEMO_GYM_TOKEN"
NEW_TOKEN_COMMAND: Final = f"export {TOKEN_VARIABLE}=$(openssl rand -hex 32)"


def token_of(environ: Mapping[str, str]) -> str | None:
    """The token in ``NEMO_GYM_TOKEN``, None when there is none.

    Raises ``ConfigError``, which does not show it, for one that a request's header cannot carry.
    """
    token = environ.get(TOKEN_VARIABLE) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(
            f"The token in {TOKEN_VARIABLE} holds a space, a line break or another character that a request's header "
            f"cannot carry. Type `{NEW_TOKEN_COMMAND}`."
        )
    return token
