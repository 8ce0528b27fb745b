"""``gym clean``: it removes what it names, asks first, and leaves alone what is in use or not ours."""

from __future__ import annotations

import fcntl
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.containers import images
from nemo_gym.containers.build_network import BuildNetwork
from nemo_gym.containers.builds import LABEL_BUILD_STAGE
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.images import PYTHON_IMAGE
from nemo_gym.deployment import image_commands
from nemo_gym.errors import EngineError, EngineUnavailableError
from tests.unit.fake_engine import FakeEngine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with some of every cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NEMO_GYM_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for path in ("nemo_gym/downloads/aa/x", "nemo_gym/benchmarks/b/data/b.jsonl", "nemo_gym/venvs/v/bin/python"):
        file = tmp_path / ".cache" / path
        file.parent.mkdir(parents=True)
        file.write_bytes(b"1" * 1000)
    locks = tmp_path / ".cache/nemo-gym/locks"
    locks.mkdir(parents=True)
    (locks / "nemo-gym_base.lock").touch()
    (tmp_path / "results").mkdir()
    return tmp_path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    """Python and one server image of ours, built just now from a folder of the user's."""
    fake = FakeEngine(images={PYTHON_IMAGE: "sha256:" + "ab" * 32})
    monkeypatch.setattr(DockerEngine, "connect", lambda environ: fake)
    monkeypatch.setattr(images, "find_build_network", lambda environ: BuildNetwork())
    monkeypatch.setattr(image_commands, "search_roots", lambda dirs: [tmp_path])
    for variable in ("NEMO_GYM_PYTHON_IMAGE", "NEMO_GYM_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    return fake


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(environ: object) -> None:
        raise EngineUnavailableError("A Docker engine is needed, and none answers.\nStart it.")

    monkeypatch.setattr(DockerEngine, "connect", refuse)


def clean(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["clean", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def names(shown: Any) -> list[str]:
    return [Path(cache["path"]).name for cache in shown["caches"]]


ALL = ["downloads", "benchmarks", "venvs", "locks"]


def test_a_dry_run_names_everything_and_removes_nothing(
    home: Path, no_engine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = clean(capsys, "--dry-run")
    assert (names(shown), shown["removed"]) == (ALL, False)
    assert [cache["size_bytes"] for cache in shown["caches"]] == [1000, 1000, 1000, 0]
    assert clean(capsys, "--dry-run") == shown


def test_with_yes_nothing_is_left_but_what_is_not_ours(
    home: Path, no_engine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".cache/nemo_gym/mine").mkdir()
    shown = clean(capsys, "--yes")
    assert (names(shown), shown["removed"]) == (ALL, True)
    assert sorted(path.name for path in (home / ".cache").rglob("*")) == ["mine", "nemo_gym"]
    assert (home / "results").is_dir()
    assert clean(capsys, "--yes")["caches"] == []


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("yes\n", 0), ("n\n", 4), ("\n", 4), ("", 4)])
def test_without_yes_it_asks(
    home: Path, no_engine: None, monkeypatch: pytest.MonkeyPatch, answer: str, left: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["clean"]) == 0
    assert "Remove all of this?" in capsys.readouterr().err
    assert len(clean(capsys, "--dry-run")["caches"]) == left


def test_where_nobody_can_be_asked_it_says_what_to_type(
    home: Path, no_engine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["clean"]) == 2
    assert "Type `gym clean --yes`." in capsys.readouterr().err
    assert len(clean(capsys, "--dry-run")["caches"]) == 4


def test_what_a_process_is_busy_in_stays(home: Path, no_engine: None, capsys: pytest.CaptureFixture[str]) -> None:
    lock = home / ".cache/nemo_gym/downloads/aa/.x.lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert names(clean(capsys, "--yes")) == ["benchmarks", "venvs", "locks"]
    finally:
        os.close(handle)
    assert main(["clean", "--yes"]) == 0
    assert not lock.exists()


def test_further_cache_directories(home: Path, no_engine: None, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "mine/downloads").mkdir(parents=True)
    (home / "mine/other").mkdir()
    shown = clean(capsys, "--yes", "--cache-dir", str(home / "mine"))
    assert str(home / "mine/downloads") in [cache["path"] for cache in shown["caches"]]
    assert [path.name for path in (home / "mine").iterdir()] == ["other"]


def test_without_an_engine_it_says_so(home: Path, no_engine: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "Images are left out: A Docker engine is needed, and none answers." in said.err
    assert str(home / ".cache/nemo_gym/downloads") in said.out


def test_images_and_build_stages_go_and_python_stays(
    home: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    app = home / "images/resources_servers/mine/app.py"
    app.parent.mkdir(parents=True)
    app.write_text("1")
    assert main(["images", "build"]) == 0
    capsys.readouterr()
    tags = sorted(engine.images.keys() - {PYTHON_IMAGE})
    assert len(tags) == 3
    assert sorted(clean(capsys, "--dry-run")["images"]) == tags
    assert clean(capsys, "--yes", "--keep-images")["images"] == []
    assert sorted(engine.images.keys() - {PYTHON_IMAGE}) == tags
    assert sorted(clean(capsys, "--yes")["images"]) == tags
    assert list(engine.images) == [PYTHON_IMAGE]
    assert engine.calls["remove_dangling_images"] >= 1
    assert LABEL_BUILD_STAGE == "nemo-gym.stage"


def test_an_image_that_a_session_uses_stays(home: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", "build"]) == 0
    capsys.readouterr()
    engine.errors["remove_image"] = [EngineError("a container uses it", status=409)]
    first, *others = clean(capsys, "--dry-run")["images"]
    assert main(["clean", "--yes", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["images"] == others
    assert f"{first} stays: a container uses it." in said.err
    assert first in engine.images


def test_nothing_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_engine: None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("NEMO_GYM_CACHE_DIR", raising=False)
    assert main(["clean"]) == 0
    assert capsys.readouterr().out == "There is nothing to remove.\n"
