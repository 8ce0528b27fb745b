"""How long a busy registry asks to be left alone. An engine passes its refusal on, and not this header."""

from __future__ import annotations

import contextlib
import email.utils
import time
import urllib.error
import urllib.request

from nemo_gym.containers.references import ImageReference

_TIMEOUT_S = 5.0


def ask_retry_after(reference: ImageReference) -> float | None:
    """The ``Retry-After`` of the registry's refusal, in seconds from now.

    None when it does not refuse this process, names no time, or is the engine's default registry, whose address only
    the engine knows.
    """
    if not reference.registry:
        return None
    scheme = "http" if reference.is_loopback else "https"
    url = f"{scheme}://{reference.registry}/v2/{reference.path}/manifests/{reference.digest or reference.tag}"
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as refusal:
        with contextlib.closing(refusal):
            return parse_retry_after(refusal.headers.get("Retry-After") or "", time.time())
    except (OSError, ValueError):
        return None


def parse_retry_after(text: str, now: float) -> float | None:
    """Seconds, or a date as HTTP writes it; None for anything else."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    return None
