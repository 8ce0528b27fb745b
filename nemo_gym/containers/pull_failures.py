"""Why a pull failed, read from what the engine said. Pure guessing from text, and its only place.

The texts are those of engine 20.10 and of registries seen with it; others are ``OTHER``, which is reported as it came
and not tried again. What it misses: registries that word a refusal as something else (some answer 404 for what one
may not see), and why a company's proxy refused.
"""

from __future__ import annotations

import enum
import re


class PullCause(enum.Enum):
    """What kept an image from being pulled."""

    BUSY = "busy"
    TROUBLE = "trouble"
    NO_SPACE = "no space"
    NO_PLATFORM = "no platform"
    CERTIFICATE = "certificate"
    NO_TLS = "no TLS"
    PROXY = "proxy"
    CREDENTIALS = "credentials"
    HELPER = "helper"
    MISSING = "missing"
    UNREACHABLE = "unreachable"
    OTHER = "other"

    @property
    def is_transient(self) -> bool:
        """Whether the same pull may succeed in a moment."""
        return self in (PullCause.BUSY, PullCause.TROUBLE)


# the first that matches counts
_PATTERNS = (
    (PullCause.NO_SPACE, r"no space left on device|disk quota exceeded"),
    (PullCause.NO_PLATFORM, r"no matching manifest for|does not match the specified platform"),
    (PullCause.HELPER, r"Credentials store error|docker-credential-"),
    (PullCause.BUSY, r"toomanyrequests|too many requests|HTTP (status: )?429|pull rate limit"),
    (PullCause.PROXY, r"proxyconnect|Proxy Authentication Required"),
    (PullCause.CERTIFICATE, r"x509:|certificate signed by unknown|certificate has expired"),
    (PullCause.NO_TLS, r"server gave HTTP response to HTTPS client|first record does not look like a TLS handshake"),
    (
        PullCause.CREDENTIALS,
        r"no basic auth credentials|unauthorized|authentication required|access denied|denied:|incorrect username",
    ),
    (
        PullCause.MISSING,
        r"manifest unknown|manifest for .* not found|name unknown|repository .* not found|tag .* not found",
    ),
    (PullCause.UNREACHABLE, r"no such host|connection refused|network is unreachable|no route to host"),
    (
        PullCause.TROUBLE,
        (
            r"HTTP (status: )?5\d\d|\bEOF\b|connection reset|broken pipe|i/o timeout|TLS handshake timeout"
            r"|Client\.Timeout exceeded|server misbehaving|temporary failure|filesystem layer verification failed"
        ),
    ),
)

_ADVICE = {
    PullCause.BUSY: "The registry limits how much is pulled. Wait, or `docker login` for a higher limit.",
    PullCause.TROUBLE: "The registry, or the way to it, is in trouble. Try again later.",
    PullCause.NO_SPACE: "The engine's disk is full. See `docker system df`; free some with `docker image prune`.",
    PullCause.NO_PLATFORM: "The image is not made for the engine's platform. Name one that is.",
    PullCause.CERTIFICATE: (
        "The engine does not trust the registry's certificate. Put your company's CA on the engine's machine as "
        "/etc/docker/certs.d/{registry}/ca.crt."
    ),
    PullCause.NO_TLS: (
        "The registry speaks no TLS. Give it a certificate, or name it in `insecure-registries` of the engine's "
        "daemon.json."
    ),
    PullCause.PROXY: (
        "It is the engine that pulls, through the proxy in its own settings (HTTPS_PROXY and NO_PROXY of the docker "
        "service, `docker info`). Correct them there."
    ),
    PullCause.CREDENTIALS: (
        "The registry wants credentials that it accepts, and for this image. Type `docker login {registry}`; they are "
        "taken from docker's own config (DOCKER_CONFIG, else ~/.docker/config.json)."
    ),
    PullCause.HELPER: (
        "The credential helper that docker's config names (credsStore, credHelpers) failed. Install or repair it, or "
        "take it out of the config and type `docker login {registry}`."
    ),
    PullCause.MISSING: "The registry has no such tag or digest. Check the reference.",
    PullCause.UNREACHABLE: (
        "The engine cannot reach the registry. Check its name, and the network and proxy of the engine's machine."
    ),
}

_RETRY_AFTER = re.compile(r"retry-after: ([\d.]+)\s*(µs|us|ms|s|m|h)?", re.IGNORECASE)
_SECONDS = {"µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def find_cause(text: str) -> PullCause:
    """The likely cause of a failure that the engine words so."""
    for cause, pattern in _PATTERNS:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    return PullCause.OTHER


def advice_for(cause: PullCause, registry: str) -> str:
    """What to do about it; empty where nothing is known. ``registry`` is empty for the engine's default one."""
    return _ADVICE.get(cause, "").replace(" {registry}", f" {registry}" if registry else "").format(registry=registry)


def find_retry_after(text: str) -> float | None:
    """The seconds to wait that some registries put into the text of their refusal."""
    match = _RETRY_AFTER.search(text)
    return float(match[1].rstrip(".")) * _SECONDS[(match[2] or "").lower()] if match is not None else None
