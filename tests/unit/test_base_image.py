"""What scripts/base_image.py decides without an engine."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import cast

import pytest

from nemo_gym.errors import EngineError
from scripts import base_image
from tests.unit.fake_daemon import Request, fake_daemon

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


def test_a_tar_whose_end_is_missing_has_none(tmp_path: Path) -> None:
    """Whoever reads it must not take it for whole: an engine would make an image of it, labelled as current."""
    (tmp_path / "file").write_text("text")
    with base_image.tar_stream(tmp_path) as archive:
        whole = b"".join(archive)
    with tarfile.open(fileobj=BytesIO(whole)) as made:
        assert made.getnames() == [".", "./file"]
    with (
        base_image.tar_stream(tmp_path / "gone") as archive,
        pytest.raises(base_image.CannotProvideError, match="tar of the new image failed with exit code 2"),
    ):
        list(archive)


class TestImport:
    def run(self, answer: Callable[[Request], None], images: list[str]) -> list[bytes]:
        """Import a tar of two pieces; ``images`` are the IDs that the engine has under the name, look by look."""

        def take(request: Request) -> None:
            received.append(_read_chunks(request))
            answer(request)

        def inspect(request: Request) -> None:
            found = images.pop(0)
            request.send_json({"Id": found} if found else {"message": "No such image"}, 200 if found else 404)

        received: list[bytes] = []
        with fake_daemon({"POST /images/create": take, "GET /images/nemo-gym/x:1/json": inspect}) as daemon:
            engine = cast(base_image.ImportingEngine, base_image.ImportingEngine.connect({"DOCKER_HOST": daemon.url}))
            try:
                engine.import_image(iter([b"one", b"two"]), "nemo-gym/x:1", ["CMD x"])
            finally:
                engine.close()
        return received

    def test_made(self) -> None:
        assert self.run(lambda request: request.send_json({"status": "sha256:new"}), ["", "sha256:new"]) == [b"onetwo"]

    def test_refused(self) -> None:
        with pytest.raises(EngineError, match="no space left on device"):
            self.run(lambda request: request.send_json({"message": "no space left on device"}, 500), [""])

    def test_told_in_the_answer(self) -> None:
        with pytest.raises(base_image.CannotProvideError, match=r"could not import nemo-gym/x:1: .*unexpected EOF"):
            self.run(lambda request: request.send_json({"error": "unexpected EOF"}), ["sha256:old", "sha256:old"])


def _read_chunks(request: Request) -> bytes:
    body = b""
    while size := int(request.rfile.readline(), 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body
