"""A server folder's ``requirements.txt``: a lock that is held to, or a list that is resolved when the image is built.

A file with hashes is a lock and passes as it is. Any other was written elsewhere or by hand, and is made to fit where
it is installed: by pip, in an image that holds nothing of the folder yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.errors import ConfigError

_COMMENT = re.compile(r"(^|\s)#.*$")  # pip: a comment begins the line, or follows white space
_CONTINUED = re.compile(r"\\\r?\n")
_OWN_PACKAGE = re.compile(
    r"(?:-e\s*|--editable[\s=]*)?nemo[-_.]gym\s*(?:\[[^]]*\]\s*)?@\s*(?P<where>\S+)", re.IGNORECASE
)
_FILE = r"(?:file:|(?!\S*://)\S)"
_LOCAL = re.compile(
    rf"(?:-[rce]|--(?:requirement|constraint|editable))[\s=]*{_FILE}|\.|/|file:|[^@\s]+\s*@\s*(?:file:|\.|/)"
)


@dataclass(frozen=True, slots=True)
class Requirements:
    """What is to be installed, and what there is to say about it."""

    text: str
    notices: tuple[str, ...] = ()


def parse_requirements(path: Path) -> Requirements:
    """The requirements that an image of the folder is built with.

    Of a file without hashes, a line that asks for ``nemo-gym`` from a path (``-e nemo-gym[dev] @ ../../``) is dropped:
    it means the tree that the folder was written in, and the base image has this package. Raises ``ConfigError`` for
    lines that ask for other files, which are not there when the image installs them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8 text, and is not ({error}).") from error
    if "--hash=" in text:
        return Requirements(text)
    lines = [_COMMENT.sub("", line).strip() for line in _CONTINUED.sub("", text).splitlines()]
    kept, dropped = [], []
    for line in filter(None, lines):
        own = _OWN_PACKAGE.match(line)
        if own is not None and "://" not in own["where"]:
            dropped.append(line)
        elif _LOCAL.match(line):
            raise ConfigError(
                f"{path} asks for {line!r}: a file, and none is there when the image is built from this list. Name the "
                "distribution it holds, or put a Dockerfile of your own beside it that copies and installs it."
            )
        else:
            kept.append(line)
    wanted = "".join(f"{line}\n" for line in kept) if dropped else text
    return Requirements(wanted, tuple(_notices(path, kept, dropped)))


def _notices(path: Path, kept: list[str], dropped: list[str]) -> list[str]:
    notices = [
        f"{path}: {line!r} is left out, as the base image has nemo_gym's server part. To have a nemo-gym from an "
        "index in its place, name that: nemo-gym==VERSION."
        for line in dropped
    ]
    if kept:
        notices.append(
            f"{path} has no hashes: what is installed is decided when the image is built, and may be something else on "
            "another machine. To lock it, rename it to requirements.in and type `uv pip compile --generate-hashes "
            "requirements.in -o requirements.txt`."
        )
    return notices
