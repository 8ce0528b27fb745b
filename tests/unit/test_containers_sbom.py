"""What is installed in an image is asked once, and not known where there is nobody to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.containers.sbom import installed_packages
from nemo_gym.errors import EngineError, EngineUnavailableError
from tests.unit.fake_engine import FakeEngine

ID = "sha256:" + "ab" * 32


def test_asked_once(tmp_path: Path) -> None:
    engine = FakeEngine(outputs={ID: '{"python": "3.13.5", "aiohttp": "3"}'})
    for _ in range(2):
        assert installed_packages(engine, ID, tmp_path / "new") == {"python": "3.13.5", "aiohttp": "3"}
    assert engine.calls["run_once"] == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ab" * 32 + ".json"]


@pytest.mark.parametrize("output", ["Segmentation fault", "[]"])
def test_an_image_that_cannot_say(tmp_path: Path, output: str) -> None:
    assert installed_packages(FakeEngine(outputs={ID: output}), ID, tmp_path) is None
    engine = FakeEngine(errors={"run_once": [EngineError("no python3 in $PATH")]})
    assert installed_packages(engine, ID, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError):
        installed_packages(FakeEngine(errors={"run_once": [EngineUnavailableError("gone")]}), ID, tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    engine = FakeEngine(outputs={ID: '{"python": "3"}'})
    assert installed_packages(engine, ID, tmp_path / "file") == {"python": "3"}
