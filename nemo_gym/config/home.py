"""Paths that begin with ``~``. Standard library only: prepare scripts use this in environments of their own."""

from __future__ import annotations

import os
from pathlib import Path

from nemo_gym.errors import ConfigError


def expanded(path: str | os.PathLike[str], what: str) -> Path:
    """``path`` with the home directory in place of a leading ``~`` or ``~user``.

    Where there is none, a ``ConfigError`` that begins with ``what``: the setting or option that holds the path. Give
    a text rather than a ``Path`` where there is one: ``./~x`` is a file of that name, and a ``Path`` drops the ``./``.
    """
    text = os.fspath(path)
    found = os.path.expanduser(text)  # noqa: PTH111 - a Path has lost the "./" of "./~x"
    if not found.startswith("~"):
        return Path(found)
    user = text.partition("/")[0].removeprefix("~")
    if not user:
        raise ConfigError(
            f"{what} is {text!r}, and this user (uid {os.getuid()}) has no home directory. Set HOME, or write the "
            "path out."
        )
    raise ConfigError(
        f"{what} is {text!r}, and there is no user {user!r} whose home directory that would be. If it is the name of a "
        f"file or folder, write ./{text}"
    )
