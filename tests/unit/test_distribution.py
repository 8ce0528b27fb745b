"""The wheel and the sdist: they carry images, benchmarks and types, and no data that was prepared here."""

from __future__ import annotations

import configparser
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import nemo_gym

ROOT = Path(__file__).parents[2]
CARRIED = [
    str(path.relative_to(ROOT))
    for top in ("images", "benchmarks")
    for path in sorted((ROOT / top).rglob("*"))
    if path.is_file() and not {"data", "__pycache__"} & set(path.relative_to(ROOT).parts) and path.name[0] != "."
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    assert Path(path).name == f"nemo_gym-{nemo_gym.__version__}-py3-none-any.whl"
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("sdist")), versions=["standard"])
    with tarfile.open(path) as archive:
        return [member.partition("/")[2] for member in archive.getnames()]


def test_the_wheel_has_what_serving_needs(wheel: zipfile.ZipFile) -> None:
    members = set(wheel.namelist())
    assert {f"nemo_gym/_data/{path}" for path in CARRIED} <= members
    assert {"nemo_gym/py.typed", "nemo_gym/_data/Dockerfile", "nemo_gym/_data/images/NOTICES.md"} <= members
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "nemo_gym").rglob("*.py") if "_data" not in path.parts}
    assert modules <= members
    assert [name for name in members if "/data/" in name or "__pycache__" in name or name.startswith("tests/")] == []


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    info = f"nemo_gym-{nemo_gym.__version__}.dist-info"
    metadata = wheel.read(f"{info}/METADATA").decode()
    for line in (
        f"Version: {nemo_gym.__version__}",
        "License-Expression: Apache-2.0",
        "Classifier: Typing :: Typed",
        "Classifier: Framework :: Pytest",
        "Provides-Extra: testing",
    ):
        assert line in metadata.splitlines()
    assert {f"{info}/licenses/{path}" for path in ("LICENSE", "images/NOTICES.md")} <= set(wheel.namelist())
    entries = configparser.ConfigParser()
    entries.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(entries["console_scripts"]) == {"gym": "nemo_gym.cli.main:main"}
    assert dict(entries["pytest11"]) == {"nemo_gym": "nemo_gym.testing.plugin"}


def test_the_sdist_has_all_that_a_wheel_is_built_from(sdist: list[str]) -> None:
    assert {*CARRIED, "Dockerfile", "LICENSE", "hatch_build.py", "pyproject.toml", "scripts/base_image.py"} <= set(
        sdist
    )
    assert {"tests/example_project/conftest.py", "CHANGELOG.md", "README.md"} <= set(sdist)
    assert [path for path in sdist if path.startswith("benchmarks/") and "/data/" in path] == []
