"""Image references, taken apart and checked. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from nemo_gym.errors import ConfigError

_EXAMPLES = "registry.example.com:5000/team/server:1.2, or team/server@sha256:<64 hex digits>"
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_REGISTRY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?|\[[0-9A-Fa-f:]+\](?::\d+)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """``registry`` is empty for the engine's default one. Exactly one of ``tag`` and ``digest`` is set."""

    registry: str
    path: str
    tag: str
    digest: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"

    @property
    def repository(self) -> str:
        return f"{self.registry}/{self.path}" if self.registry else self.path

    @property
    def is_loopback(self) -> bool:
        """Whether the registry stands on the engine's own machine (which then needs no TLS)."""
        host = self.registry.rpartition(":")[0] or self.registry
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False


def parse_reference(text: str) -> ImageReference:
    """A reference as it is written: ``[registry/]path[:tag][@digest]``; the digest, where there is one, decides.

    Raises ``ConfigError`` that says what is wrong with it, and what one looks like.
    """
    rest, at, digest = text.partition("@")
    if at and _DIGEST.fullmatch(digest) is None:
        raise _wrong(text, "after the @ stands the digest, sha256: and 64 hex digits (0-9, a-f)")
    if "://" in rest:
        raise _wrong(text, f"it is a name and no URL: leave out {rest.partition('://')[0]}://")
    if re.search(r"\s", rest):
        raise _wrong(text, "it holds a space")
    registry, slash, path = rest.partition("/")
    if not slash or not (registry == "localhost" or re.search(r"[.:\[]", registry)):
        registry, path = "", rest
    if registry and _REGISTRY.fullmatch(registry) is None:
        raise _wrong(text, f"{registry!r} is no host name with or without a port")
    path, colon, tag = path.partition(":")
    if colon and _TAG.fullmatch(tag) is None:
        raise _wrong(text, "a tag is at most 128 letters, digits, '_', '-' and '.', and does not begin with '-' or '.'")
    _check_path(text, path)
    return ImageReference(registry, path, "" if digest else tag or "latest", digest)


def _check_path(text: str, path: str) -> None:
    if not path:
        raise _wrong(text, "the image's name is missing")
    if path != path.lower():
        raise _wrong(text, f"the name may hold no capitals; {path.lower()!r} may be meant")
    if "" in path.split("/"):
        raise _wrong(text, "a '/' has nothing before or after it")
    for component in path.split("/"):
        if _COMPONENT.fullmatch(component) is None:
            raise _wrong(text, f"{component!r} may hold a-z, 0-9, and single '.', '_' or '-' between them")


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} is no image reference: {why}. One looks like {_EXAMPLES}.")
