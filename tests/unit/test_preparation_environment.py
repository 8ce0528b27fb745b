"""What a prepare script imports: packages listed in the config, or a locked project beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.config.resolve import load_config
from nemo_gym.environment import plan_benchmark
from nemo_gym.environment.benchmark_preparation import (
    PreparationFailedError,
    _install_prepare_dependencies,
    _prepare_environment,
    datasets_to_prepare,
)
from nemo_gym.environment.benchmarks import BenchmarkConfig
from nemo_gym.environment.caches import Cache, find_caches, remove_cache
from nemo_gym.environment.prepare_environment import dependency_folder, environment_in_use
from tests.support.made_benchmark import MadeBenchmark, make_benchmark
from tests.support.made_wheel import make_wheel

pytestmark = pytest.mark.usefixtures("root")

USES_PACKAGE = """
    import json, sys
    import made_numbers

    def prepare(output_path):
        row = {"responses_create_params": {"input": str(made_numbers.ANSWER)}, "python": sys.executable}
        output_path.write_text(json.dumps(row))
        return output_path
"""
UV = Path(sys.executable).with_name("uv")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip and uv take for their index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_PYTHON", sys.executable)
    for version, answer in (("1.0", 42), ("2.0", 43)):
        wheel = folder / f"made_numbers-{version}-py3-none-any.whl"
        make_wheel(wheel, needs="", files={"made_numbers/__init__.py": f"ANSWER = {answer}\n"})
    return folder


def dataset_of(made: MadeBenchmark) -> BenchmarkConfig:
    return datasets_to_prepare(load_config([made.config_file], serving=False))[0]


def answer_of(benchmark: str, **overrides: Any) -> str:
    row = plan_benchmark(benchmark, overrides=overrides).rows[0]
    return str(row["responses_create_params"]["input"])


def importable_here() -> bool:
    return (
        subprocess.run([sys.executable, "-c", "import made_numbers"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.usefixtures("index")
def test_listed_packages_are_installed_before_the_script_is_imported_and_for_it_alone(root: Path) -> None:
    make_benchmark(root, "one", script=USES_PACKAGE, prepare_dependencies=["made_numbers==1.0"])
    make_benchmark(root, "two", script=USES_PACKAGE, prepare_dependencies=["made_numbers>=2"])
    assert answer_of("one") == "42"
    assert answer_of("two") == "43"
    assert not importable_here()


def test_listed_packages_are_installed_once(root: Path, index: Path) -> None:
    made = make_benchmark(root, script=USES_PACKAGE, prepare_dependencies=["made_numbers"])
    assert answer_of("demo") == "43"
    shutil.rmtree(index)
    assert answer_of("demo") == "43"
    assert _prepare_environment(dataset_of(made)) is None


@pytest.mark.usefixtures("index")
def test_a_package_that_is_not_there_is_a_failed_preparation(root: Path) -> None:
    made = make_benchmark(root, script=USES_PACKAGE, prepare_dependencies=["no-such-package-here"])
    with pytest.raises(
        PreparationFailedError, match=r"(?s)failed \(install dependencies\): pip .*no-such-package-here"
    ):
        plan_benchmark("demo")
    assert not made.data_file.exists()
    with pytest.raises(PreparationFailedError):
        _install_prepare_dependencies(dataset_of(made))


def test_options_are_no_packages(root: Path) -> None:
    made = make_benchmark(root, script=USES_PACKAGE, prepare_dependencies=["--index-url=http://x"])
    with pytest.raises(ConfigError, match="which is an option of pip"):
        _install_prepare_dependencies(dataset_of(made))


def lock_project(made: MadeBenchmark, index: Path, version: str) -> None:
    """A project beside the script that pins ``made_numbers``, and its ``uv.lock``."""
    wheel = index / f"made_numbers-{version}-py3-none-any.whl"
    (made.folder / "pyproject.toml").write_text(
        '[project]\nname = "demo-prepare"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["made_numbers"]\n'
        f'[tool.uv.sources]\nmade_numbers = {{ path = "{wheel}" }}\n'
    )
    environment = {**os.environ, "TMPDIR": str(index)}  # uv leaves a lock of its own there
    subprocess.run([UV, "lock", "--quiet", "--project", made.folder], env=environment, check=True)


LOCKED = """
    import importlib.util, json, os, sys
    import made_numbers
    from nemo_gym.environment.downloads import cache_dir, download

    def prepare(output_path):
        print("preparing in", sys.prefix)
        others = [name for name in ("pydantic", "omegaconf", "docker") if importlib.util.find_spec(name)]
        row = {
            "responses_create_params": {"input": str(made_numbers.ANSWER)},
            "prefix": sys.prefix, "others": others, "cache": str(cache_dir()),
        }
        output_path.write_text(json.dumps(row))
        return output_path
"""


def test_a_locked_project_is_synced_into_an_environment_of_its_own(
    root: Path, tmp_path: Path, index: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    made = make_benchmark(root, script=LOCKED)
    lock_project(made, index, "1.0")
    venvs = tmp_path / "venvs"
    before = sorted(path.name for path in made.folder.iterdir())
    row = plan_benchmark("demo", overrides={"uv_venv_dir": str(venvs)}).rows[0]
    assert row["responses_create_params"] == {"input": "42"}
    assert Path(row["prefix"]).parent == venvs
    assert row["others"] == []
    assert row["cache"] == str(tmp_path / "cache")
    assert capfd.readouterr().out == f"preparing in {row['prefix']}\n"
    assert not importable_here()
    left = {"data", "__pycache__"}
    assert sorted(path.name for path in made.folder.iterdir() if path.name not in left) == before
    lock_project(made, index, "2.0")
    assert answer_of("demo", uv_venv_dir=str(venvs)) == "43"
    assert len([path for path in venvs.iterdir() if path.is_dir()]) == 1
    assert list(temporary.iterdir()) == []


def test_the_environment_is_under_the_cache_directory_unless_configured(
    root: Path, tmp_path: Path, index: Path
) -> None:
    made = make_benchmark(root, script=LOCKED)
    lock_project(made, index, "1.0")
    python = _prepare_environment(dataset_of(made))
    assert python is not None
    assert python.is_relative_to(tmp_path / "cache" / "venvs")
    assert subprocess.check_output([python, "-c", "import made_numbers; print(made_numbers.ANSWER)"]) == b"42\n"
    other = _prepare_environment(dataset_of(made), tmp_path / "elsewhere")
    assert other is not None
    assert other.is_relative_to(tmp_path / "elsewhere")


def test_a_lock_that_does_not_fit_its_project_is_a_failed_preparation(root: Path, index: Path) -> None:
    made = make_benchmark(root, script=LOCKED)
    lock_project(made, index, "1.0")
    project = made.folder / "pyproject.toml"
    project.write_text(project.read_text().replace('["made_numbers"]', '["made_numbers", "another"]'))
    with pytest.raises(PreparationFailedError, match=r"(?s)failed \(sync environment\): uv ended with exit code \d+:"):
        plan_benchmark("demo")


def test_listed_packages_go_before_a_locked_project(root: Path, index: Path) -> None:
    made = make_benchmark(root, script=USES_PACKAGE, prepare_dependencies=["made_numbers==1.0"])
    lock_project(made, index, "2.0")
    assert answer_of("demo") == "42"
    assert json.loads(made.data_file.read_text())["python"] == sys.executable


def test_what_a_script_imports_is_not_removed_while_it_runs(root: Path, tmp_path: Path) -> None:
    made = make_benchmark(
        root,
        prepare_dependencies=["made_numbers"],
        script="""
            import json
            from nemo_gym.environment.caches import find_caches, remove_cache

            def prepare(output_path):
                left = [cache.path.name for cache in find_caches({}) if not remove_cache(cache)]
                row = {"responses_create_params": {"input": "x"}, "left": left}
                output_path.write_text(json.dumps(row))
                return output_path
        """,
    )
    folder = dependency_folder(dataset_of(made))
    assert folder is not None
    folder.mkdir(parents=True)
    assert plan_benchmark("demo").rows[0]["left"] == ["prepare-dependencies"]
    assert folder.is_dir()
    assert all(remove_cache(cache) for cache in find_caches({}))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_environment_that_is_used_by_several_is_not_removed(root: Path, tmp_path: Path, elsewhere: bool) -> None:
    made = make_benchmark(root, script=LOCKED)
    for name in ("pyproject.toml", "uv.lock"):
        (made.folder / name).touch()
    dataset, venvs = dataset_of(made), tmp_path / ("elsewhere/venvs" if elsewhere else "cache/venvs")
    cache = Cache(venvs, "", 0)
    with environment_in_use(dataset, venvs if elsewhere else None):
        with environment_in_use(dataset, venvs):
            assert not remove_cache(cache)
        assert not remove_cache(cache)
        assert venvs.is_dir()
    assert remove_cache(cache)
    assert not venvs.exists()


def test_without_uv_the_message_says_how_to_get_it(root: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_benchmark(root, script=LOCKED)
    lock_project(made, index, "1.0")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigError, match=r"pip install 'nemo-gym\[isolated-prepare\]'"):
        _prepare_environment(dataset_of(made))
