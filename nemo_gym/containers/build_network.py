"""What a build needs of this host's network: proxies and package indexes, from the environment and pip's config.

They travel as build arguments. Proxies are among those that an engine keeps out of an image's history and out of
its build cache by itself; the others are declared in build stages only, and stages that saw a password are not kept.
"""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY")
_PIP_TIMEOUT_S = 30.0
_LOOPBACK = ("localhost", "127.", "::1")


@dataclass(frozen=True, slots=True)
class BuildNetwork:
    """``build_args`` for every build; ``secrets`` are the user names and passwords among them."""

    build_args: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redact(self, text: str) -> str:
        """``text`` without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "****")
        return text


def find_build_network(environ: Mapping[str, str]) -> BuildNetwork:
    """What this host uses, handed on to builds."""
    return build_network(environ, parse_pip_config(read_pip_config(environ)))


def build_network(environ: Mapping[str, str], pip: Mapping[str, str]) -> BuildNetwork:
    """Proxies of ``environ`` and indexes of ``pip``'s settings, without those that only this host can reach."""
    args = {}
    for name in _PROXIES:
        value = environ.get(name) or environ.get(name.lower()) or ""
        if value and (name == "NO_PROXY" or _is_reachable(value, name)):
            args[name] = args[name.lower()] = value
    for setting, name in (("index-url", "PIP_INDEX_URL"), ("extra-index-url", "PIP_EXTRA_INDEX_URL")):
        urls = [url for url in pip.get(setting, "").split() if _is_reachable(url, f"pip's {setting}")]
        if urls:
            args[name] = " ".join(urls)
    urls_of = {name: value.split() for name, value in args.items() if name.upper() != "NO_PROXY"}
    secrets = {part for name, urls in urls_of.items() for url in urls for part in _credentials(url, name)}
    return BuildNetwork(args, tuple(sorted(secrets, key=len, reverse=True)))


def parse_pip_config(listed: str) -> dict[str, str]:
    """The settings that hold for ``pip install``, of what ``pip config list`` prints."""
    found: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, equals, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        rank = {"global": 0, "install": 1, ":env:": 2}.get(section)
        if not equals or rank is None or rank < found.get(name, (0, ""))[0]:
            continue
        try:
            found[name] = rank, str(ast.literal_eval(quoted))
        except (ValueError, SyntaxError):
            continue
    return {name: value for name, (_, value) in found.items()}


def read_pip_config(environ: Mapping[str, str]) -> str:
    """What ``pip config list`` prints; nothing where there is no pip."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    try:
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("pip's configuration cannot be read: %s", error)
        return ""
    return done.stdout


def _is_reachable(url: str, source: str) -> bool:
    parts = _split(url, source)
    host = parts.hostname or ""
    if parts.scheme in ("http", "https", "socks5", "socks5h", "ftp") and not host.startswith(_LOOPBACK):
        return True
    logger.warning("%s (%s) is on this machine alone and is left out of builds", source, host or parts.scheme)
    return False


def _credentials(url: str, source: str) -> list[str]:
    """The parts of a URL that are to be hidden: the password or, where there is none, the user name (a token)."""
    parts = _split(url, source)
    secret = parts.password or parts.username
    return [secret] if secret else []


def _split(url: str, source: str) -> SplitResult:
    """Raises ``ConfigError`` that does not show the URL, of which a part that was not found may be a password."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port  # a host and port that are the beginning of a user name and password, say
    except ValueError:
        raise ConfigError(
            f"{source} is no address that can be read: SCHEME://[USER:PASSWORD@]HOST[:PORT] is needed. Special "
            "characters of a user name or password are to be quoted: %5B for [, %5D for ], %2F for /, and so on."
        ) from None
    return parts
