"""The lock file says what images are made from, and what differs is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_gym.containers.engine import ImageState
from nemo_gym.containers.image_lock import ImageLock, LockedImage, locked_image, parse_lock, read_lock
from nemo_gym.errors import ConfigError

BUILT = LockedImage("resources_servers/mcqa", f"nemo-gym/x:{'a' * 12}-{'b' * 12}", "aa" * 32, "sha256:" + "1" * 64)
PULLED = LockedImage("r.example/x:1", "r.example/x:1", None, "sha256:" + "2" * 64, ("r.example/x@sha256:22",))
PYTHON = LockedImage("python", "python:3", None, "sha256:" + "3" * 64, ("python@sha256:33",), None, {"pip": "1"})
LOCK = ImageLock((BUILT, PULLED, PYTHON), "my.lock.json")


def test_written_and_read_back() -> None:
    again = parse_lock(LOCK.to_json(), "my.lock.json")
    assert sorted(again.images, key=lambda image: image.name) == sorted(LOCK.images, key=lambda image: image.name)
    assert again.to_json() == LOCK.to_json() == ImageLock(LOCK.images[::-1]).to_json()


def test_what_an_image_says() -> None:
    labels = {"nemo-gym.context": "cc", "org.opencontainers.image.revision": "r1"}
    state = ImageState("sha256:1", (), ("x@sha256:1",), labels, "", 1, ())
    built = locked_image("a/b", f"nemo-gym/a/b:{'a' * 12}-{'b' * 12}", state, {"pip": "1"})
    assert (built.context, built.revision, built.packages) == ("cc", "r1", {"pip": "1"})
    pushed_elsewhere = locked_image("r/x:1", f"r.example/nemo-gym/a/b:{'a' * 12}-{'b' * 12}", state, None)
    assert pushed_elsewhere.context is None


class TestDifferences:
    def test_contexts(self) -> None:
        assert LOCK.differing_contexts({BUILT.name: "aa" * 32}) == []
        assert LOCK.differing_contexts({BUILT.name: "bb" * 32, "new": "cc"}) == [
            f"resources_servers/mcqa is to be built from other files (context hash {'b' * 12}, locked {'a' * 31})",
            "new is not in it",
        ]
        (found,) = LOCK.differing_contexts({PULLED.name: "bb" * 32})
        assert "locked none, it came from a registry" in found

    def test_an_own_images_id_is_not_compared(self) -> None:
        assert LOCK.differing_images([replace(BUILT, image_id="sha256:9")]) == []

    def test_from_a_registry(self) -> None:
        assert LOCK.differing_images([PULLED, PYTHON]) == []
        (found,) = LOCK.differing_images([replace(PULLED, image_id="sha256:9")])
        assert found == "r.example/x:1 has another image ID (sha256:9, locked sha256:222222222222)"
        (found,) = LOCK.differing_images([replace(PULLED, repo_digests=("r.example/x@sha256:99",))])
        assert found == "r.example/x:1 has another digest (r.example/x@sha256:99, locked r.example/x@sha256:22)"
        assert LOCK.differing_images([replace(PULLED, name="other")]) == ["other is not in it"]

    def test_a_python_that_was_made_here_is_not_compared(self) -> None:
        assert LOCK.differing_images([replace(PYTHON, image_id="sha256:9", repo_digests=())]) == []
        assert LOCK.differing_images([replace(PYTHON, image_id="sha256:9")]) != []
        assert ImageLock(()).differing_images([PYTHON]) == []

    def test_refused_by_name(self) -> None:
        LOCK.refuse([])
        with pytest.raises(ConfigError, match=r"lock file my\.lock\.json: a; b\.\n.*gym images lock"):
            LOCK.refuse(["a", "b"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no lock file"),
        ("[]", "no lock file"),
        ('{"version": 2}', "has version 2"),
        ('{"version": 1, "images": {"a": {}}}', "no lock file"),
        ('{"version": 1, "images": {"a": {"reference": "a", "context": 1, "image_id": "b"}}}', "no lock file"),
        ('{"version": 1, "images": {"a": {"more": 1}}}', "no lock file"),
    ],
)
def test_something_else(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_lock(tmp_path / "x")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_lock(tmp_path / "x")
