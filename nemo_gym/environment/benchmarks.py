"""What a resolved config says about benchmarks: which data sets there are, and where their files stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nemo_gym.config.home import expanded
from nemo_gym.config.sources import install_root, is_package_data, root_of_config, search_roots
from nemo_gym.environment.downloads import cache_dir
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.config.config_types import DatasetConfig

BENCHMARK_TYPE: Final = "benchmark"
_AGENT_TYPE: Final = "responses_api_agents"
_FOLDER: Final = "benchmarks"


@dataclass(frozen=True)
class BenchmarkConfig:
    """One data set of a resolved config.

    ``name`` is the data set's, ``path`` the config file it comes from, ``agent_name`` the server that lists it
    (for a benchmark, the agent that runs its rows).
    """

    name: str
    path: Path
    agent_name: str
    num_repeats: int
    dataset: DatasetConfig
    cache_dir: Path | None = None

    @property
    def is_benchmark(self) -> bool:
        return self.dataset.type == BENCHMARK_TYPE

    @cached_property
    def root(self) -> Path:
        """What relative paths of the data set start from."""
        root = find_config_root(self.path)
        if root is None and self.dataset.prepare_script:
            script = Path(self.dataset.prepare_script)
            root = next((root for root in search_roots() if (root / script).is_file()), None)
        return root or Path.cwd()

    @property
    def data_file(self) -> Path:
        """The prepared rows. What is installed is never written to: then they lie under the cache directory."""
        configured = expanded(self.dataset.jsonl_fpath, f"jsonl_fpath of {self.name}")
        root = self.root
        if is_package_data(root):
            root = self.cache_dir or cache_dir()
        return (root / configured).absolute()

    @property
    def script_file(self) -> Path | None:
        script = self.dataset.prepare_script
        return None if script is None else self._find_file(script, "prepare_script")

    @property
    def module(self) -> str:
        """The dotted name of the prepare script: what messages call it, and what it is run as."""
        path = Path(self.dataset.prepare_script or self.name)
        if path.is_absolute():
            root = self.root
            path = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        return ".".join(path.with_suffix("").parts)

    @property
    def prompt_file(self) -> Path | None:
        prompt = self.dataset.prompt_config
        return None if prompt is None else self._find_file(prompt, "prompt_config")

    def _find_file(self, configured: str, key: str) -> Path:
        """The file under the config's root, else under the search roots; where it was expected if it is nowhere."""
        relative = expanded(configured, f"{key} of {self.name}")
        expected = (self.root / relative).absolute()
        if expected.is_file() or relative.is_absolute():
            return expected
        return next((path for root in search_roots() if (path := (root / relative).absolute()).is_file()), expected)


def find_config_root(config_path: Path) -> Path | None:
    """The folder that relative paths in this config start from, or None for no path at all."""
    if not config_path.name:
        return None
    path = config_path.resolve()
    roots = search_roots()
    # The working directory is a search root too, and may lie inside a benchmark's own folder.
    holding = [root for root in roots if path.is_relative_to(root / _FOLDER)]
    return max(holding, key=lambda root: len(root.parts)) if holding else root_of_config(path, roots)


def benchmark_name(config_path: Path) -> str:
    """``NAME`` or ``NAME/FLAVOR``, as one types it, of a benchmark's config file."""
    parts = config_path.with_suffix("").parts
    if _FOLDER not in parts:
        return parts[-1] if parts else ""
    below = parts[len(parts) - parts[::-1].index(_FOLDER) :]
    return "/".join(below[:-1] if below[-1] == "config" and len(below) > 1 else below)


def config_paths_of(config: Mapping[str, Any]) -> list[str]:
    """The config files that the config says it was asked to read."""
    paths = config.get("config_paths") or []
    return [paths] if isinstance(paths, str) else [str(path) for path in paths]


def find_datasets(config: Mapping[str, Any]) -> list[BenchmarkConfig]:
    """Every data set of a plain resolved config, in the order of the config.

    An agent may list one data set of type ``benchmark``, not several.
    """
    # Validation of servers needs pydantic, which takes longer to import than the rest of this package.
    from nemo_gym.config.config_types import parse_server_instances

    cache = config.get("cache_dir")
    own_cache = expanded(cache, "cache_dir").absolute() if isinstance(cache, str) else None
    found = []
    for instance in parse_server_instances(config):
        datasets = [
            BenchmarkConfig(
                name=dataset.name,
                path=_declaring_file(config, dataset),
                agent_name=instance.name,
                num_repeats=dataset.num_repeats,
                dataset=dataset,
                cache_dir=own_cache,
            )
            for dataset in _parse_datasets(instance.name, instance.settings)
        ]
        benchmarks = [dataset.name for dataset in datasets if dataset.is_benchmark]
        if len(benchmarks) > 1:
            raise ConfigError(
                f"{instance.name}.datasets has {len(benchmarks)} entries of type benchmark ({', '.join(benchmarks)}); "
                "a benchmark has exactly one. Give the others an agent of their own."
            )
        if benchmarks and instance.server_type != _AGENT_TYPE:
            raise ConfigError(
                f"{instance.name} is one of the {instance.server_type} and lists the benchmark {benchmarks[0]!r}; a "
                f"benchmark's data set stands under the agent that runs it ({_AGENT_TYPE})."
            )
        found.extend(datasets)
    return found


def get_benchmark(config: Mapping[str, Any]) -> BenchmarkConfig:
    """The one benchmark that the config declares; a ``ConfigError`` when it declares none, or several."""
    benchmarks = [dataset for dataset in find_datasets(config) if dataset.is_benchmark]
    if len(benchmarks) == 1:
        return benchmarks[0]
    needed = "Needed: exactly one agent whose datasets have an entry with `type: benchmark`"
    if not benchmarks:
        raise ConfigError(f"This config declares no benchmark. {needed}; `gym list benchmarks` shows those there are.")
    found = ", ".join(f"{benchmark.name} (of {benchmark.agent_name})" for benchmark in benchmarks)
    raise ConfigError(f"This config declares {len(benchmarks)} benchmarks: {found}. {needed}. Plan them one by one.")


def _parse_datasets(server: str, settings: Mapping[str, Any]) -> Iterator[DatasetConfig]:
    from pydantic import ValidationError

    from nemo_gym.config.config_types import DatasetConfig

    entries = settings.get("datasets")
    if entries is None:
        return
    if not isinstance(entries, list):
        raise ConfigError(f"{server}.datasets must be a list; found {type(entries).__name__}.")
    for number, entry in enumerate(entries):
        try:
            yield DatasetConfig.model_validate(entry)
        except ValidationError as error:
            raise ConfigError(validation_message(f"{server}.datasets[{number}]", error)) from None


def validation_message(where: str, error: Any) -> str:
    """One line for what pydantic found, without its links and class names."""
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        key = ".".join(map(str, fault["loc"]))
        found = "" if fault["type"] == "missing" else f" (found {fault['input']!r:.80})"
        faults.append(f"{key}: {fault['msg']}{found}" if key else f"{fault['msg']}{found}")
    return f"{where} is not valid: {'; '.join(faults)}."


def _declaring_file(config: Mapping[str, Any], dataset: DatasetConfig) -> Path:
    """The config file that the data set's relative paths belong to.

    Of the files the config was read from, the later rather than the earlier, but first of all one whose folder has
    the data set's script, then one whose root has it, then one of a benchmark.
    """
    located = [_locate(Path(path)) for path in config_paths_of(config)]
    script = Path(dataset.prepare_script or dataset.jsonl_fpath)

    def closeness(path: Path) -> tuple[bool, bool, bool]:
        root = find_config_root(path)
        place = script if root is None else root / script
        return place.is_relative_to(path.parent), place.is_file(), _FOLDER in path.parts

    return max(reversed(located), key=closeness, default=Path())


def _locate(path: Path) -> Path:
    if path.is_absolute():
        return path
    return next((root / path for root in search_roots() if (root / path).is_file()), path)


def gym_relative_path(path: str) -> str:
    """A config path relative to the Gym checkout when it lies inside it, so that plans match across machines."""
    absolute = _locate(Path(path)).absolute()
    root = install_root()
    for base, candidate in ((root, absolute), (root.resolve(), absolute.resolve())):
        if candidate.is_relative_to(base):
            return candidate.relative_to(base).as_posix()
    return path
