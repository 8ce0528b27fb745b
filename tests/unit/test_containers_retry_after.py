"""A busy registry is asked when it may be asked again."""

from __future__ import annotations

import pytest

from nemo_gym.containers.references import parse_reference
from nemo_gym.containers.retry_after import ask_retry_after, parse_retry_after
from tests.unit.fake_daemon import Request, fake_daemon


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1.5", 1.5),
        ("-4", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
    ],
)
def test_both_spellings(text: str, seconds: float | None) -> None:
    assert parse_retry_after(text, now=60.0) == seconds


def refuse(request: Request) -> None:
    request.send_response(429)
    request.send_header("Retry-After", "7")
    request.send_header("Connection", "close")
    request.end_headers()


def test_a_refusal_is_asked_for() -> None:
    with fake_daemon({"HEAD /a/b/manifests/1": refuse}) as registry:
        address = registry.url.removeprefix("tcp://")
        assert ask_retry_after(parse_reference(f"{address}/a/b:1")) == 7.0
        assert ask_retry_after(parse_reference(f"{address}/other:1")) is None
        assert registry.seen == ["HEAD /a/b/manifests/1", "HEAD /other/manifests/1"]  # its /v2 is left out


def test_nobody_to_ask() -> None:
    assert ask_retry_after(parse_reference("127.0.0.1:1/a")) is None
    assert ask_retry_after(parse_reference("python:3")) is None
