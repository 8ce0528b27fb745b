"""Prepare the data sets of a resolved config by running their prepare scripts, and plan a benchmark.

``gym eval prepare`` and ``gym eval plan`` stand on this module, and so do callers that hold a resolved config in
Python.

A prepare script is a Python file with a function ``prepare`` that writes the data set's rows, one JSON object a
line, and returns the path of the file it wrote. It may take

- ``output_path``: where to write. What is written there takes the place of the configured ``jsonl_fpath`` once
  ``prepare`` has returned it, so a failure half-way changes nothing. A script without this parameter must write
  to the configured path itself, and gets the same protection at the price of moving the earlier file aside;
- any other parameters, which are given with ``prepare_script_args``.

It may also define ``is_prepared_data_current(path) -> bool``, which is asked before a prepared file is reused.
From this package a script imports ``nemo_gym.environment.downloads`` and, for the caller's configuration,
``nemo_gym.config.process_config.get_process_config``. It runs in a process of its own.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import Field, ValidationError, field_validator

from nemo_gym.config.config_types import BaseNeMoGymCLIConfig
from nemo_gym.config.home import expanded
from nemo_gym.config.process_config import get_process_config, process_config
from nemo_gym.environment.benchmarks import (
    BenchmarkConfig,
    find_datasets,
    get_benchmark,
    gym_relative_path,
    validation_message,
)
from nemo_gym.environment.collated_files import checked_selection, collate_config, load_prompt, plain_config, plan_of
from nemo_gym.environment.data_lock import clear_leftovers, exclusive, lock_file, open_data_file
from nemo_gym.environment.downloads import cache_dir
from nemo_gym.environment.preparation_failure import PreparationFailedError
from nemo_gym.environment.prepare_environment import (
    _install_prepare_dependencies,
    _prepare_environment,
    dependency_folder,
    environment_in_use,
)
from nemo_gym.environment.prepare_process import (
    DEFAULT_TIMEOUT_S,
    PrepareRun,
    _prepare_json_default,
    _run_isolated_prepare,
    current_run,
    prepare_run,
)
from nemo_gym.environment.prepare_script import find_faults, inspect_script
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.eval.eval_plan import EvalPlan

__all__ = [
    "PreparationFailedError",
    "PrepareBenchmarkConfig",
    "_install_prepare_dependencies",
    "_multiprocess_benchmark_prepare_fn",
    "_prepare_environment",
    "_prepare_json_default",
    "_run_isolated_prepare",
    "datasets_to_prepare",
    "gym_relative_path",
    "open_benchmark",
    "parse_prepare_config",
    "plan_for_config",
    "prepare_datasets",
]

logger = logging.getLogger(__name__)


class PrepareBenchmarkConfig(BaseNeMoGymCLIConfig):
    """Prepare benchmark data by running the benchmark's ``prepare.py``.

    The benchmark is the one of a ``config_paths`` entry that points to a ``benchmarks/*/config.yaml``::

        gym eval prepare --benchmark gsm8k

    With ``use_cached_prepared_benchmarks=true`` a prepared file that exists is reused, unless the script's own
    ``is_prepared_data_current`` says that it is out of date. ``prepare_script_args`` go to the script's
    ``prepare``. ``num_prepare_benchmark_processes`` data sets are prepared at a time. ``uv_venv_dir`` holds the
    environments of scripts with a locked project. A script that has not ended after ``prepare_timeout_s`` is
    ended (null: never).
    """

    num_prepare_benchmark_processes: int = Field(default=1, ge=1)
    prepare_script_args: dict[str, Any] = Field(default_factory=dict)
    use_cached_prepared_benchmarks: bool = False
    uv_venv_dir: Path = Field(default_factory=lambda: cache_dir() / "venvs")
    prepare_timeout_s: float | None = Field(default=DEFAULT_TIMEOUT_S, gt=0)

    @field_validator("uv_venv_dir", mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expanded(value, "uv_venv_dir").absolute() if isinstance(value, str | os.PathLike) else value


def parse_prepare_config(config: DictConfig | Mapping[str, Any]) -> PrepareBenchmarkConfig:
    """What the config says about preparing."""
    plain = plain_config(config)
    cache = plain.get("cache_dir")
    if isinstance(cache, str):
        plain = {"uv_venv_dir": expanded(cache, "cache_dir").absolute() / "venvs", **plain}
    try:
        return PrepareBenchmarkConfig.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(validation_message("The config", error)) from None


def datasets_to_prepare(global_config_dict: DictConfig) -> list[BenchmarkConfig]:
    """Every data set the config prepares: benchmark data sets, and others that have a ``prepare_script``."""
    datasets = find_datasets(plain_config(global_config_dict))
    return [dataset for dataset in datasets if dataset.is_benchmark or dataset.dataset.prepare_script]


def plan_for_config(
    global_config_dict: DictConfig,
    prepare_config: PrepareBenchmarkConfig,
    task_ids: Sequence[str] | None = None,
) -> EvalPlan:
    """Prepare the one benchmark a resolved config declares, and build its plan (as ``gym eval plan`` does)."""
    selection = checked_selection(task_ids)
    plain = plain_config(global_config_dict)
    with open_benchmark(global_config_dict, prepare_config) as prepared:
        return plan_of(plain, collate_config(plain, task_ids=selection, prepared=prepared))


@contextmanager
def open_benchmark(
    global_config_dict: DictConfig, prepare_config: PrepareBenchmarkConfig | None = None
) -> Iterator[dict[Path, BinaryIO]]:
    """Prepare the one benchmark the config declares; its data file's path, and the file opened for reading.

    What is opened is what this call has prepared, also when another thread or process prepares the same data set
    with other overrides at the same time. The script sees the config as its Gym configuration.
    """
    benchmark = get_benchmark(plain_config(global_config_dict))
    prepare_config = prepare_config or parse_prepare_config(global_config_dict)
    _refuse_faults([benchmark], prepare_config)
    with ExitStack() as cleanup:
        with process_config(global_config_dict), _prepared(benchmark, prepare_config, global_config_dict):
            stream = cleanup.enter_context(open_data_file(benchmark.data_file))
        yield {benchmark.data_file: stream}


def prepare_datasets(datasets: Sequence[BenchmarkConfig], prepare_benchmark_config: PrepareBenchmarkConfig) -> None:
    """Run each data set's prepare script, after validating all of them.

    The scripts see the Gym configuration in force (``get_process_config``). When one fails, those that have not
    begun are left out, those that have are let end, and the first failure is raised.
    """
    _refuse_faults(datasets, prepare_benchmark_config)
    config = get_process_config()
    work = [(dataset, prepare_benchmark_config, config) for dataset in datasets if dataset.dataset.prepare_script]
    if prepare_benchmark_config.num_prepare_benchmark_processes == 1 or len(work) == 1:
        for item in work:
            _multiprocess_benchmark_prepare_fn(item)
        return
    stopped = threading.Event()
    runs = [PrepareRun(stopped=stopped) for _ in work]
    with ThreadPoolExecutor(prepare_benchmark_config.num_prepare_benchmark_processes) as pool:
        futures = []
        try:
            for item, run in zip(work, runs, strict=True):
                with prepare_run(run):
                    prepare = contextvars.copy_context().run
                futures.append(pool.submit(prepare, _multiprocess_benchmark_prepare_fn, item))
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            # Interrupted: the threads end when what they run or wait for does.
            for run in runs:
                run.stop()
            raise
        finally:
            for future in futures:
                future.cancel()
    for future in futures:
        if not future.cancelled():
            future.result()


def _multiprocess_benchmark_prepare_fn(args: tuple[BenchmarkConfig, PrepareBenchmarkConfig, Any]) -> None:
    """Prepare one data set, unless its prepared file may be reused; others that want the same file wait."""
    with _prepared(*args):
        pass


@contextmanager
def _prepared(
    dataset: BenchmarkConfig, prepare_config: PrepareBenchmarkConfig, config: DictConfig | None
) -> Iterator[None]:
    """Inside the block the data set is prepared, and nobody else prepares it."""
    data_file, script = dataset.data_file, dataset.script_file
    may_reuse = prepare_config.use_cached_prepared_benchmarks
    if script is None or (may_reuse and _has_content(data_file) and not os.access(data_file.parent, os.W_OK)):
        yield
        return
    run = current_run() or PrepareRun()
    folder = dependency_folder(dataset)
    run.script, run.root, run.cache = script, dataset.root, dataset.cache_dir
    run.search_path = [str(folder)] if folder is not None else []
    run.timeout_s = prepare_config.prepare_timeout_s
    with exclusive(lock_file(data_file), f"the preparation of {dataset.name}", run.stopped), prepare_run(run):
        clear_leftovers(data_file)
        if not (may_reuse and _has_content(data_file) and _is_current(dataset, script, prepare_config, config)):
            logger.info("Preparing %s", dataset.name)
            _run_script(dataset, prepare_config, "prepare", dict(prepare_config.prepare_script_args), config)
        yield


def _is_current(
    dataset: BenchmarkConfig, script: Path, prepare_config: PrepareBenchmarkConfig, config: DictConfig | None
) -> bool:
    """Whether the script has nothing against reusing the prepared file."""
    if not inspect_script(script).has_currency_check:
        return True
    return bool(_run_script(dataset, prepare_config, "is_prepared_data_current", {}, config)["current"])


def _run_script(
    dataset: BenchmarkConfig,
    prepare_config: PrepareBenchmarkConfig,
    action: str,
    args: dict[str, Any],
    config: DictConfig | None,
) -> dict[str, Any]:
    with environment_in_use(dataset, prepare_config.uv_venv_dir):
        python = _prepare_environment(dataset, prepare_config.uv_venv_dir) or Path(sys.executable)
        return _run_isolated_prepare(python, dataset.module, action, dataset.data_file, args, config)


def _has_content(data_file: Path) -> bool:
    return data_file.is_file() and data_file.stat().st_size > 0


def _refuse_faults(datasets: Sequence[BenchmarkConfig], prepare_config: PrepareBenchmarkConfig) -> None:
    """A ``ConfigError`` with everything that keeps these data sets from being prepared."""
    args = prepare_config.prepare_script_args
    faults = [f"{dataset.name}: {fault}" for dataset in datasets for fault in _faults(dataset, args)]
    faults += _shared_outputs(datasets)
    if faults:
        raise ConfigError("Nothing was prepared:\n" + "\n".join(f"- {fault}" for fault in faults))


def _faults(dataset: BenchmarkConfig, args: Mapping[str, Any]) -> list[str]:
    """What keeps the data set from being prepared, as far as that can be told without running anything."""
    faults = []
    try:
        load_prompt(dataset)
    except ConfigError as error:
        faults = [str(error)]
    data_file, script = dataset.data_file, dataset.script_file
    if data_file.is_dir():
        faults.append(f"its jsonl_fpath {data_file} is a folder. Needed: the path of the file that holds its rows.")
    elif script is None and not data_file.is_file():
        faults.append(f"there is no {data_file}, and the data set has no prepare_script that would write it.")
    return faults if script is None else faults + find_faults(script, args)


def _shared_outputs(datasets: Sequence[BenchmarkConfig]) -> list[str]:
    writers: dict[Path, BenchmarkConfig] = {}
    faults = []
    for dataset in datasets:
        first = writers.setdefault(dataset.data_file, dataset)
        if first.script_file != dataset.script_file:
            faults.append(f"{first.name} and {dataset.name} both write {dataset.data_file}, with different scripts.")
    return faults
