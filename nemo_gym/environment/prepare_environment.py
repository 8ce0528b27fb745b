"""What a prepare script imports: packages listed in the config, or a locked project of its own."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nemo_gym.config.home import expanded
from nemo_gym.environment.benchmarks import BenchmarkConfig
from nemo_gym.environment.data_lock import exclusive, in_use
from nemo_gym.environment.downloads import cache_dir
from nemo_gym.environment.preparation_failure import PreparationFailedError
from nemo_gym.environment.prepare_process import PrepareRun, current_run
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

_LOG_TAIL: Final = 3000


def _prepare_environment(benchmark_config: BenchmarkConfig, venv_root: Path | None = None) -> Path | None:
    """The Python that the data set's prepare script runs under; None for the one running now.

    Dependencies listed in the config are installed for it; else, where ``pyproject.toml`` and ``uv.lock`` stand
    beside the script, that project is synced into an environment of its own under ``venv_root``.
    """
    if benchmark_config.dataset.prepare_dependencies:
        _install_prepare_dependencies(benchmark_config)
        return None
    project = find_locked_project(benchmark_config)
    if project is None:
        return None
    venv = _venv_folder(project, venv_root)
    command = [_uv(), "sync", "--locked", "--no-dev", "--no-install-project", "--project", str(project)]
    # An environment that is active here is not the one to sync.
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    environment["UV_PROJECT_ENVIRONMENT"] = str(venv)
    # uv leaves a lock of its own in the temporary directory, one for each project.
    temporary = venv.with_name(f".{venv.name}.tmp")
    environment["TMPDIR"] = str(temporary)
    with exclusive(venv.with_name(f".{venv.name}.lock"), f"the environment {venv}", _stopped()):
        temporary.mkdir(exist_ok=True)
        try:
            _run(command, environment, benchmark_config, "sync environment")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _venv_folder(project: Path, venv_root: Path | None) -> Path:
    root = (cache_dir() / "venvs" if venv_root is None else expanded(venv_root, "uv_venv_dir")).absolute()
    # Two checkouts may have a script of the same name, with different locks.
    key = hashlib.sha256(str(project.resolve()).encode()).hexdigest()[:12]
    return root / f"prepare-{project.name}-{key}"


@contextmanager
def environment_in_use(benchmark_config: BenchmarkConfig, venv_root: Path | None = None) -> Iterator[None]:
    """Inside the block, what ``_prepare_environment`` makes for the data set is not removed by ``remove_cache``."""
    folder = dependency_folder(benchmark_config)
    if folder is None and (project := find_locked_project(benchmark_config)) is not None:
        folder = _venv_folder(project, venv_root)
    if folder is None:
        yield
        return
    # Another lock than that of making it: others may bring it up to date, and use it too, meanwhile.
    with in_use(folder.with_name(f".{folder.name}.in-use.lock"), f"removing {folder}", _stopped()):
        yield


def _stopped() -> threading.Event | None:
    run = current_run()
    return None if run is None else run.stopped


def _install_prepare_dependencies(benchmark_config: BenchmarkConfig) -> None:
    """Install what a benchmark's prepare script imports, before it is imported.

    They go to a folder of their own, which the script's process looks in first: the caller's environment stays as
    it is, and two benchmarks may need different versions. Installed once.
    """
    target = dependency_folder(benchmark_config)
    if target is None or target.is_dir():
        return
    requirements = benchmark_config.dataset.prepare_dependencies
    for requirement in requirements:
        if requirement.startswith("-"):
            raise ConfigError(
                f"{benchmark_config.name}: prepare_dependencies has {requirement!r}, which is an option of pip. "
                "Needed: requirements such as 'datasets==4.0.0'."
            )
    with exclusive(target.with_name(f".{target.name}.lock"), f"what {benchmark_config.name} needs", _stopped()):
        if target.is_dir():
            return
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet"]
        command += ["--target", str(partial), "--", *requirements]
        sys.stderr.write(f"Installing for the preparation of {benchmark_config.name}: {' '.join(requirements)}\n")
        _run(command, os.environ, benchmark_config, "install dependencies")
        partial.replace(target)


def dependency_folder(benchmark_config: BenchmarkConfig) -> Path | None:
    """Where the dependencies that the config lists are installed; None when it lists none."""
    requirements = benchmark_config.dataset.prepare_dependencies
    if not requirements:
        return None
    version = f"{sys.implementation.cache_tag}-{sys.platform}"
    key = hashlib.sha256("\n".join([version, *sorted(requirements)]).encode()).hexdigest()[:16]
    return (benchmark_config.cache_dir or cache_dir()) / "prepare-dependencies" / key


def find_locked_project(benchmark_config: BenchmarkConfig) -> Path | None:
    """The folder of the prepare script when a locked project stands there."""
    script = benchmark_config.script_file
    if script is None or not all((script.parent / name).is_file() for name in ("pyproject.toml", "uv.lock")):
        return None
    return script.parent


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise ConfigError(
            "This benchmark prepares its data in a locked project of its own, which takes uv, and there is no uv. "
            "Type: pip install 'nemo-gym[isolated-prepare]'"
        )
    return found


def _run(
    command: Sequence[str], environment: Mapping[str, str], benchmark_config: BenchmarkConfig, action: str
) -> None:
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with process, (current_run() or PrepareRun()).running(process):
        said = process.communicate()[0].decode(errors="replace")
    if process.returncode != 0:
        program = Path(command[0]).name if "-m" not in command[:3] else command[2]
        raise PreparationFailedError(
            benchmark_config.module,
            action,
            f"{program} ended with exit code {process.returncode}:\n{said.strip()[-_LOG_TAIL:]}",
        )
