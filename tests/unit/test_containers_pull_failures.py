"""Causes are found in what engines and registries really said."""

from __future__ import annotations

import pytest

from nemo_gym.containers.pull_failures import PullCause, advice_for, find_cause, find_retry_after


@pytest.mark.parametrize(
    ("said", "cause"),
    [  # engine 20.10 with a registry, and a proxy before it that answers as told
        ("toomanyrequests: slow down", PullCause.BUSY),
        ("error parsing HTTP 429 response body: invalid character 'o' in literal null: \"nope\"", PullCause.BUSY),
        ("received unexpected HTTP status: 503 As told", PullCause.TROUBLE),
        ("received unexpected HTTP status: 500 As told", PullCause.TROUBLE),
        ('Get "https://x/v2/": net/http: TLS handshake timeout', PullCause.TROUBLE),
        ("manifest for 127.0.0.1:4/a:none not found: manifest unknown: manifest unknown", PullCause.MISSING),
        ("no matching manifest for linux/amd64 in the manifest list entries", PullCause.NO_PLATFORM),
        ('Head "http://127.0.0.1:5/v2/a/manifests/1": no basic auth credentials', PullCause.CREDENTIALS),
        ("unauthorized: authentication required", PullCause.CREDENTIALS),
        ('Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused', PullCause.UNREACHABLE),
        (
            'Get "https://no.invalid/v2/": dial tcp: lookup no.invalid on 1.1.1.1:53: no such host',
            PullCause.UNREACHABLE,
        ),
        ("invalid reference format", PullCause.OTHER),
        # worded by Go and Linux
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", PullCause.NO_SPACE),
        ("x509: certificate signed by unknown authority", PullCause.CERTIFICATE),
        ("http: server gave HTTP response to HTTPS client", PullCause.NO_TLS),
        ("proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused", PullCause.PROXY),
        # the SDK's
        ("Credentials store error: StoreError('docker-credential-x not installed')", PullCause.HELPER),
    ],
)
def test_causes(said: str, cause: PullCause) -> None:
    assert find_cause(f"pulling x failed: {said}") is cause
    assert cause.is_transient is (cause in (PullCause.BUSY, PullCause.TROUBLE))


def test_advice_names_the_registry() -> None:
    assert "`docker login host:5000`" in advice_for(PullCause.CREDENTIALS, "host:5000")
    assert "`docker login`" in advice_for(PullCause.CREDENTIALS, "")
    assert "/etc/docker/certs.d/host:5000/ca.crt" in advice_for(PullCause.CERTIFICATE, "host:5000")
    assert advice_for(PullCause.OTHER, "x") == ""
    assert all("{" not in advice_for(cause, "x") for cause in PullCause)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("toomanyrequests: retry-after: 250ms, allowed: 44000/minute", 0.25),
        ("toomanyrequests: Retry-After: 3", 3.0),
        ("retry-after: 2m", 120.0),
        ("toomanyrequests: slow down", None),
    ],
)
def test_waiting_times_in_the_text(said: str, seconds: float | None) -> None:
    assert find_retry_after(said) == seconds
