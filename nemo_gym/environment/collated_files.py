"""Collating the data sets of a resolved config: the reading and writing around ``nemo_gym.eval.collation``."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final

import nemo_gym
from nemo_gym.environment.benchmarks import (
    BenchmarkConfig,
    benchmark_name,
    config_paths_of,
    find_datasets,
    get_benchmark,
    gym_relative_path,
)
from nemo_gym.environment.checkout import gym_commit
from nemo_gym.environment.data_lock import open_prepared
from nemo_gym.errors import ConfigError
from nemo_gym.eval.collation import PARAMS, PlannedTasks, RowSource, collate
from nemo_gym.eval.collector import collector_paused
from nemo_gym.eval.eval_plan import EvalPlan, GymVersion, PlannedFrom, PlannedTask, build_plan
from nemo_gym.eval.prompts import PromptTemplate, parse_prompt_config

if TYPE_CHECKING:
    from omegaconf import DictConfig

_AGENT_TYPE: Final = "responses_api_agents"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
# Looking for near names compares with each one; among more than this many, only those that begin alike.
_MANY_NAMES: Final = 20_000


@dataclass
class Collated:
    """What collating gave: the selected tasks, and the rows to run where they were asked for."""

    tasks: list[PlannedTask]
    selected_task_ids: list[str] | None
    rows: list[dict[str, Any]] = field(default_factory=list)


def collate_config(
    config: DictConfig | Mapping[str, Any],
    *,
    task_ids: Iterable[str] | None = None,
    output_dir: Path | None = None,
    keep_rows: bool = False,
    prepared: Mapping[Path, BinaryIO] | None = None,
) -> Collated:
    """Collate every benchmark data set of the config in one pass over its prepared file.

    ``task_ids`` selects tasks. ``prepared`` holds data files that are open already. With ``output_dir``, each data
    set's rows are written there as ``<data set>.jsonl``, complete or not at all. ``keep_rows`` returns them as well.
    """
    wanted = checked_selection(task_ids)
    plain = plain_config(config)
    sources = [
        (benchmark, _row_source(plain, benchmark)) for benchmark in find_datasets(plain) if benchmark.is_benchmark
    ]
    tasks = PlannedTasks()
    rows: list[dict[str, Any]] = []
    position = 0
    names = [source.name for _, source in sources]
    with collector_paused() if keep_rows else nullcontext(), _output_files(output_dir, names) as outputs:
        for benchmark, source in sources:
            output = outputs.get(source.name)
            first = position
            opened = (prepared or {}).get(benchmark.data_file)
            with open_prepared(benchmark.data_file) if opened is None else nullcontext(opened) as lines:
                for row in collate(lines, source, first_position=first):
                    position = row.position + 1
                    tasks.add(row, source.name)
                    if wanted is not None and row.task_id not in wanted:
                        continue
                    if keep_rows:
                        rows.extend(row.repeats(source.num_repeats))
                    if output is not None:
                        output.writelines(row.lines(source.num_repeats))
            if position == first:
                raise ConfigError(f"Data set {source.name!r} has no rows: {benchmark.data_file} is empty.")
        if wanted is not None:
            _refuse_unknown_ids(wanted, tasks)
        selected = [task for task in tasks if wanted is None or task.task_id.task_id in wanted]
    return Collated(selected, None if wanted is None else sorted(wanted), rows)


def plan_of(config: DictConfig | Mapping[str, Any], collated: Collated) -> EvalPlan:
    """The plan of the one benchmark the config declares."""
    plain = plain_config(config)
    benchmark = get_benchmark(plain)
    return build_plan(
        benchmark=PlannedFrom(
            name=benchmark_name(benchmark.path) or benchmark.name,
            config_paths=tuple(gym_relative_path(path) for path in config_paths_of(plain)),
        ),
        gym=GymVersion(commit=gym_commit(), version=nemo_gym.__version__),
        tasks=collated.tasks,
        selected_task_ids=collated.selected_task_ids,
    )


def plain_config(config: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The config as a plain dict, whichever of the two it is."""
    if isinstance(config, dict):
        return config
    from nemo_gym.config.resolve import to_plain

    return to_plain(config)  # type: ignore[arg-type]


def read_task_ids(path: Path) -> list[str]:
    """The task ids in a text file, one a line; blank lines and what follows a leading ``#`` are passed over."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Cannot read the task ids in {path}: {error}. Needed: a UTF-8 text file with one task id a line."
        ) from None
    ids = [line.strip() for line in text.splitlines()]
    ids = [task_id for task_id in ids if task_id and not task_id.startswith("#")]
    if not ids:
        raise ConfigError(f"{path} holds no task id. Needed: one task id a line.")
    return ids


def checked_selection(task_ids: Iterable[str] | None) -> frozenset[str] | None:
    """The ids as a set, which is a selection too; a ``ConfigError`` when they are none at all.

    They are gone through once: what an iterator had is in the set, and no longer in the iterator.
    """
    if task_ids is None:
        return None
    if isinstance(task_ids, str):
        raise ConfigError(f"task_ids must be a list of ids; found the text {task_ids!r}. Write [{task_ids!r}].")
    if not isinstance(task_ids, Iterable):
        raise ConfigError(f"task_ids must be a list of ids; found {task_ids!r}. Write [{str(task_ids)!r}].")
    ids = list(task_ids)
    for task_id in ids:
        if not isinstance(task_id, str):
            raise ConfigError(f"A task id is a text; found {task_id!r}. Write {str(task_id)!r}.")
    if not ids:
        raise ConfigError("The selection of tasks is empty. Name at least one task id, or leave task_ids out for all.")
    return frozenset(ids)


def _refuse_unknown_ids(wanted: frozenset[str], tasks: PlannedTasks) -> None:
    unknown = sorted(task_id for task_id in wanted if task_id not in tasks)
    if not unknown:
        return
    ids = tasks.ids()
    shown = []
    for task_id in unknown[:5]:
        candidates = ids if len(ids) <= _MANY_NAMES else [name for name in ids if name[:2] == task_id[:2]][:_MANY_NAMES]
        near = get_close_matches(task_id, candidates, n=3, cutoff=0.5) or ids[:3]
        shown.append(f"{task_id!r} (nearest: {', '.join(map(repr, near))})")
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    raise ConfigError(f"No task with the id {', '.join(shown)}{more}, among {len(ids)} tasks.")


def _row_source(plain: Mapping[str, Any], benchmark: BenchmarkConfig) -> RowSource:
    entry = f"{benchmark.agent_name}.datasets: {benchmark.name}"
    agents = [name for name, server in plain.items() if isinstance(server, Mapping) and _AGENT_TYPE in server]
    return RowSource(
        name=benchmark.name,
        agent_name=benchmark.agent_name,
        where=str(benchmark.data_file),
        num_repeats=benchmark.num_repeats,
        prompt=load_prompt(benchmark),
        default_params=_checked_params(benchmark.dataset.extras().get(PARAMS), f"{entry}: {PARAMS}"),
        forced_params=_checked_params(plain.get(PARAMS), PARAMS),
        agents=frozenset(agents),
    )


def _checked_params(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping such as {{max_output_tokens: 512}}; found {value!r:.80}.")
    return value


def load_prompt(benchmark: BenchmarkConfig) -> PromptTemplate | None:
    """The template that finishes the data set's rows, if it has one; a ``ConfigError`` when it cannot be used."""
    path = benchmark.prompt_file
    if path is None:
        return None
    if not path.is_file():
        raise ConfigError(f"Data set {benchmark.name!r}: its prompt_config {path} does not exist.")
    from nemo_gym.config.yaml_files import load_yaml_file

    return parse_prompt_config(load_yaml_file(path), where=str(path))


@contextmanager
def _output_files(output_dir: Path | None, names: Sequence[str]) -> Iterator[dict[str, IO[bytes]]]:
    """An open file for each data set, by its name; they take their final names when the block ends well."""
    if output_dir is None:
        yield {}
        return
    finals = {name: output_dir / f"{_UNSAFE.sub('_', name)}.jsonl" for name in names}
    partial = {name: final.with_name(f".{final.name}.{uuid.uuid4().hex}") for name, final in finals.items()}
    with ExitStack() as cleanup:
        opened: dict[str, IO[bytes]] = {}
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
            for name, path in partial.items():
                cleanup.callback(path.unlink, missing_ok=True)
                opened[name] = cleanup.enter_context(path.open("xb", buffering=1 << 20))
            yield opened
            for name, stream in opened.items():
                stream.close()
                partial[name].replace(finals[name])
        except OSError as error:
            raise ConfigError(f"Cannot write the collated rows to {output_dir}: {error}.") from error
