"""What a resolved config says about benchmarks, and where their files stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.config.config_types import DatasetConfig
from nemo_gym.config.resolve import load_config, to_plain
from nemo_gym.environment.benchmarks import (
    BenchmarkConfig,
    benchmark_name,
    find_config_root,
    find_datasets,
    get_benchmark,
)
from tests.support.made_benchmark import asks, make_benchmark


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/benchmarks/gsm8k/config.yaml", "gsm8k"),
        ("benchmarks/gsm8k/few_shot.yaml", "gsm8k/few_shot"),
        ("/benchmarks/x/benchmarks/gsm8k/sampled/config.yaml", "gsm8k/sampled"),
        ("/a/benchmarks/gsm8k/sets/tiny.yaml", "gsm8k/sets/tiny"),
        ("/a/mine.yaml", "mine"),
    ],
)
def test_a_benchmark_is_named_as_one_types_it(path: str, name: str) -> None:
    assert benchmark_name(Path(path)) == name


def test_relative_paths_start_where_the_benchmarks_folder_stands(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_benchmark(root / "deep" / "tree", rows=[asks("a")])
    assert find_config_root(made.config_file) == root / "deep" / "tree"
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(root / "deep" / "tree"))
    monkeypatch.chdir(made.folder)
    assert find_config_root(made.config_file) == root / "deep" / "tree"
    assert find_config_root(Path()) is None


def test_paths_are_found_without_a_config_file(root: Path) -> None:
    made = make_benchmark(root, rows=[asks("a")])
    dataset = DatasetConfig(
        name="demo",
        type="benchmark",
        jsonl_fpath="benchmarks/demo/data/demo.jsonl",
        prepare_script="benchmarks/demo/prepare.py",
    )
    benchmark = BenchmarkConfig(name="demo", path=Path(), agent_name="a", num_repeats=1, dataset=dataset)
    assert (benchmark.root, benchmark.data_file, benchmark.script_file) == (root, made.data_file, made.script)
    assert benchmark.module == "benchmarks.demo.prepare"
    outside = BenchmarkConfig(
        "demo", Path(), "a", 1, dataset.model_copy(update={"prepare_script": "/elsewhere/make.py"})
    )
    assert (outside.module, outside.script_file) == ("make", Path("/elsewhere/make.py"))


def test_shared_files_are_looked_for_in_every_root(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "prompts").mkdir(parents=True)
    (shared / "prompts" / "plain.yaml").write_text("user: '{q}'\n")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(shared))
    made = make_benchmark(root, rows=[{"q": "a"}], prompt_config="prompts/plain.yaml")
    benchmark = get_benchmark(to_plain(load_config([made.config_file], serving=False)))
    assert benchmark.prompt_file == shared / "prompts" / "plain.yaml"


def test_the_benchmark_s_own_config_is_told_from_others_that_were_read_beside_it(root: Path) -> None:
    made = make_benchmark(root, rows=[asks("a")])
    models = root / "images" / "responses_api_models" / "m"
    models.mkdir(parents=True)
    (models / "config.yaml").write_text("policy_model: {responses_api_models: {m: {entrypoint: app.py}}}\n")
    for paths in ([made.config_file, models / "config.yaml"], [models / "config.yaml", made.config_file]):
        assert get_benchmark(to_plain(load_config(paths, serving=False))).path == made.config_file


AGENT = {"a": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}}}
ENTRY = {"name": "demo", "type": "benchmark", "jsonl_fpath": "x.jsonl"}


def with_datasets(datasets: Any, server_type: str = "responses_api_agents") -> dict[str, Any]:
    settings = {"entrypoint": "app.py", "domain": "math", "datasets": datasets}
    return {"a": {server_type: {"simple_agent": settings}}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_datasets({"name": "demo"}), r"a.datasets must be a list; found dict"),
        (with_datasets([{"type": "benchmark"}]), r"a.datasets\[0\] is not valid: name: .*; jsonl_fpath: "),
        (with_datasets([{**ENTRY, "num_repeats": 0}]), r"a.datasets\[0\] is not valid: num_repeats: .*\(found 0\)"),
        (with_datasets([ENTRY], "resources_servers"), "a benchmark's data set stands under the agent that runs it"),
    ],
)
def test_data_sets_that_cannot_be_read_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_datasets(config)


def test_servers_without_data_sets_have_none() -> None:
    assert find_datasets(AGENT) == []
