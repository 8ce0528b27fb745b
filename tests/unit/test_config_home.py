"""Paths that begin with ``~``."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest

from nemo_gym.config.home import expanded
from nemo_gym.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("~", "/home/me"),
        ("~/data/x.jsonl", "/home/me/data/x.jsonl"),
        (Path("~/x"), "/home/me/x"),
        ("a/~/b", "a/~/b"),
        ("./~draft.yaml", "~draft.yaml"),
        ("/tmp/~x", "/tmp/~x"),
        ("", "."),
    ],
)
def test_the_path(given: str | Path, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expanded(given, "it") == Path(found)


def test_the_home_of_another_user() -> None:
    user = pwd.getpwuid(0)
    assert expanded(f"~{user.pw_name}/x", "it") == Path(user.pw_dir, "x")


@pytest.mark.parametrize("given", ["~no.such.user/x", Path("~no.such.user/x")])
def test_a_user_that_is_not_there(given: str | Path) -> None:
    message = (
        "--config is '~no.such.user/x', and there is no user 'no.such.user' whose home directory that would be. If it "
        "is the name of a file or folder, write ./~no.such.user/x"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        expanded(given, "--config")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    message = f"results_dir is '~/x', and this user (uid {os.getuid()}) has no home directory. Set HOME, or write"
    with pytest.raises(ConfigError, match=re.escape(message)):
        expanded("~/x", "results_dir")
