"""What scripts/base_image.py decides without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import base_image

ONE, TWO = "QUJD" * 20, "WFla" * 5


def pem(body: str, width: int = 64) -> str:
    lines = [body[start : start + width] for start in range(0, len(body), width)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])


def test_certificates_are_read_whatever_their_line_width_and_surroundings() -> None:
    text = f"# a comment\n{pem(ONE, 76)}between\n{pem(TWO)}"
    assert base_image.parse_certificates(text) == [ONE, TWO]


def test_only_missing_certificates_are_appended() -> None:
    bundle = pem(ONE)
    merged = base_image.merge_certificates(bundle, [ONE, TWO])
    assert merged == bundle + pem(TWO)
    assert base_image.merge_certificates(merged, [ONE, TWO]) == merged


def test_content_changes_with_certificates_and_recipe_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = base_image.content_digest([])
    assert plain == base_image.content_digest([])
    assert plain != base_image.content_digest([ONE])
    monkeypatch.setattr(base_image, "RECIPE", base_image.RECIPE + 1)
    assert plain != base_image.content_digest([])


def test_a_bundle_of_the_hosts_own_is_found_through_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    without = base_image.find_host_certificates()
    own = tmp_path / "own.pem"
    own.write_text(pem(ONE) + pem(TWO), encoding="ascii")
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert base_image.find_host_certificates() == sorted({*without, ONE, TWO})
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    assert base_image.find_host_certificates() == without


def test_a_failed_program_is_quoted() -> None:
    with pytest.raises(base_image.CannotProvideError, match="exit code 3:\nthe reason"):
        base_image.run(["sh", "-c", "echo the reason; exit 3"])
