"""References are taken apart as engines do, and wrong ones explained."""

from __future__ import annotations

import pytest

from nemo_gym.containers.references import ImageReference, parse_reference
from nemo_gym.errors import ConfigError

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "registry", "path", "tag", "digest"),
    [
        ("python", "", "python", "latest", ""),
        ("team/server:1.2_b", "", "team/server", "1.2_b", ""),
        ("localhost/server", "localhost", "server", "latest", ""),
        ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000", "a/b/c", "v1", ""),
        ("Registry.example.com/a__b/c-d.e", "Registry.example.com", "a__b/c-d.e", "latest", ""),
        ("[::1]:5000/a:1", "[::1]:5000", "a", "1", ""),
        (f"a/b@{DIGEST}", "", "a/b", "", DIGEST),
        (f"host:1/b:tag@{DIGEST}", "host:1", "b", "", DIGEST),
    ],
)
def test_parts(text: str, registry: str, path: str, tag: str, digest: str) -> None:
    reference = parse_reference(text)
    assert reference == ImageReference(registry, path, tag, digest)
    assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the image's name is missing"),
        ("host:5000/", "the image's name is missing"),
        ("Team/Server", "the name may hold no capitals; 'team/server' may be meant"),
        ("a b", "it holds a space"),
        ("a:1 ", "it holds a space"),
        ("https://example.com/a", "it is a name and no URL: leave out https://"),
        ("a//b", "a '/' has nothing before or after it"),
        ("/a", "a '/' has nothing before or after it"),
        ("a/", "a '/' has nothing before or after it"),
        ("a/-b", "'-b' may hold a-z"),
        ("a:-1", "a tag is at most 128 letters"),
        ("a:", "a tag is at most 128 letters"),
        ("a@sha256:12", "after the @ stands the digest"),
        (f"a@{DIGEST.upper()}", "after the @ stands the digest"),
        ("-x.example/a", "'-x.example' is no host name"),
    ],
)
def test_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_reference(text)
    assert str(caught.value).startswith(f"{text!r} is no image reference: {why}")
    assert "One looks like registry.example.com:5000/team/server:1.2" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5000/a", True),
        ("127.9.9.9/a", True),
        ("localhost:5000/a", True),
        ("[::1]:5000/a", True),
        ("10.0.0.1:5000/a", False),
        ("example.com/a", False),
        ("a", False),
    ],
)
def test_on_the_engines_own_machine(text: str, expected: bool) -> None:
    assert parse_reference(text).is_loopback is expected
