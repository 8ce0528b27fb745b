from __future__ import annotations

import time
from pathlib import Path

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.config.discovery import (
    BenchmarkEntry,
    ServerEntry,
    describe_flavor,
    find_benchmark_config,
    find_model_config,
    find_server_config,
    list_benchmarks,
    list_servers,
)
from nemo_gym.config.sources import install_root

MCQA = "mcqa: {resources_servers: {mcqa: {entrypoint: app.py, domain: knowledge, description: 'Choices,\n  checked.'}}}"
CONFIG = "config_paths: [images/resources_servers/mcqa/config.yaml]\nx: {_inherit_from: mcqa}\n"


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "benchmarks/gsm8k/config.yaml", CONFIG)
    write(one, "benchmarks/gsm8k/hard.yaml", CONFIG)
    write(one, "benchmarks/gsm8k/sets/socratic.yaml", CONFIG)
    write(one, "benchmarks/gsm8k/zero/config.yaml", "x:\n  resources_servers: {mcqa: {domain: math}}\n")
    write(one, "benchmarks/gsm8k/prompt.yaml", "user: '{question}'\n")
    write(one, "benchmarks/gsm8k/README.md", "# GSM8K\n\n[![badge](x)](y)\n\nGrade school math,\n1319 rows.\n\nMore.\n")
    write(two, "benchmarks/gsm8k/config.yaml", "other: 1")
    write(two, "benchmarks/gsm8k/extra.yaml", CONFIG)
    write(
        two, "benchmarks/ifeval/config.yaml", "i: {resources_servers: {mcqa: {domain: math, description: Own words}}}"
    )
    write(two, "benchmarks/plain/config.yaml", CONFIG)
    write(two, "benchmarks/broken/config.yaml", "a: [1")
    (two / "benchmarks" / "empty").mkdir()
    write(two, "images/resources_servers/mcqa/config.yaml", MCQA)
    write(two, "images/responses_api_models/openai_model/config.yaml", "m: {responses_api_models: {openai_model: {}}}")
    return [one, two]


def test_benchmarks_and_flavors_are_found_by_name(roots: list[Path]) -> None:
    one, two = (root / "benchmarks" for root in roots)
    assert find_benchmark_config("gsm8k", roots) == one / "gsm8k/config.yaml"
    assert find_benchmark_config("gsm8k/hard", roots) == one / "gsm8k/hard.yaml"
    assert find_benchmark_config("gsm8k/zero", roots) == one / "gsm8k/zero/config.yaml"
    assert find_benchmark_config("gsm8k/sets/socratic", roots) == one / "gsm8k/sets/socratic.yaml"
    assert find_benchmark_config("gsm8k/extra", roots) == two / "gsm8k/extra.yaml"
    assert find_benchmark_config("ifeval", roots) == two / "ifeval/config.yaml"


def test_model_types_are_found_by_name(roots: list[Path]) -> None:
    folder = roots[1] / "images"
    assert find_model_config("openai_model", roots) == folder / "responses_api_models/openai_model/config.yaml"
    assert find_server_config("resources_servers", "mcqa", roots) == folder / "resources_servers/mcqa/config.yaml"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gsm8", "Unknown benchmark 'gsm8'. Did you mean gsm8k?"),
        ("zebra", "Unknown benchmark 'zebra'. There are broken, gsm8k, ifeval, plain."),
        (
            "gsm8k/herd",
            "Unknown flavor 'herd' of the benchmark 'gsm8k'. 'gsm8k' has the flavors extra, hard, sets/socratic, zero.",
        ),
        ("gsm8k/herd", "Did you mean gsm8k/hard?"),
        ("ifeval/x", "Unknown flavor 'x' of the benchmark 'ifeval'. 'ifeval' has no flavors."),
        (
            "gsm8k/config.yaml",
            "A benchmark is given by its name, without .yaml; a config file of your own with --config.",
        ),
        ("../gsm8k", "A benchmark is named NAME or NAME/FLAVOR; found '../gsm8k'."),
        ("/gsm8k", "A benchmark is named NAME or NAME/FLAVOR; found '/gsm8k'."),
        ("", "A benchmark is named NAME or NAME/FLAVOR; found ''."),
        ("empty", "Unknown benchmark 'empty'."),
        ("gsm8k/prompt", "Unknown flavor 'prompt' of the benchmark 'gsm8k'."),
    ],
)
def test_unknown_benchmarks_name_the_nearest(roots: list[Path], name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_benchmark_config(name, roots)
    assert expected in str(caught.value)
    assert "`gym list benchmarks` lists what there is." in str(caught.value)


def test_unknown_model_types_name_the_nearest_and_the_places(roots: list[Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        find_model_config("openai_modl", roots)
    assert str(caught.value) == (
        "Unknown model type 'openai_modl'. Did you mean openai_model?\n"
        f"Looked in {roots[0]}/images/responses_api_models, {roots[1]}/images/responses_api_models. "
        "`gym list models` lists what there is."
    )


@pytest.mark.parametrize(
    ("text", "is_flavor"),
    [
        ("# c\nconfig_paths: [x]", True),
        ("{config_paths: [x]}", True),
        ("'config_paths':\n- x", True),
        ("s: {resources_servers: {m: {}}}", True),
        ("s:\n  resources_servers:\n    m: {}", True),
        ("user: 'What are config_paths: [x]?'", False),
        ("# resources_servers: no\nuser: x", False),
        ("", False),
    ],
)
def test_flavors_are_told_from_prompts_and_data(tmp_path: Path, text: str, is_flavor: bool) -> None:
    write(tmp_path, "benchmarks/b/config.yaml", CONFIG)
    write(tmp_path, "benchmarks/b/other.yaml", text)
    assert list_benchmarks([tmp_path])[0].flavors == (("other",) if is_flavor else ())


def test_benchmarks_are_listed_over_all_roots(roots: list[Path]) -> None:
    one, two = (root / "benchmarks" for root in roots)
    broken, *rest = list_benchmarks(roots)
    assert broken.name == "broken"
    assert broken.problem is not None
    assert "broken/config.yaml, line 1" in broken.problem
    assert rest == [
        BenchmarkEntry(
            name="gsm8k",
            path=one / "gsm8k/config.yaml",
            description="Grade school math, 1319 rows.",
            domain="knowledge",
            flavors=("extra", "hard", "sets/socratic", "zero"),
        ),
        BenchmarkEntry(name="ifeval", path=two / "ifeval/config.yaml", description="Own words", domain="math"),
        BenchmarkEntry(
            name="plain", path=two / "plain/config.yaml", description="Choices, checked.", domain="knowledge"
        ),
    ]


def test_a_benchmark_says_how_many_rows_it_has_and_what_it_needs(tmp_path: Path) -> None:
    dataset = "{datasets: [{type: train}, {type: benchmark, num_rows: 12, needs: [a judge, two GPUs]}]}"
    flavor = "a: {responses_api_agents: {simple_agent: {datasets: [{type: benchmark, num_rows: 3}]}}}"
    write(tmp_path / "benchmarks", "own/config.yaml", f"a: {{responses_api_agents: {{simple_agent: {dataset}}}}}")
    write(tmp_path / "benchmarks", "own/few.yaml", flavor)
    write(tmp_path / "benchmarks", "silent/config.yaml", "a: {responses_api_agents: {simple_agent: {datasets: 7}}}")
    own, silent = list_benchmarks([tmp_path])
    assert (own.num_rows, own.needs) == (12, ("a judge", "two GPUs"))
    assert (silent.num_rows, silent.needs) == (None, ())
    few = describe_flavor(own, "few", tmp_path / "benchmarks" / "own" / "few.yaml")
    assert (few.num_rows, few.needs) == (3, ("a judge", "two GPUs"))


def test_servers_are_listed_by_type(roots: list[Path]) -> None:
    path = roots[1] / "images/resources_servers/mcqa/config.yaml"
    assert list_servers("resources_servers", roots) == [
        ServerEntry("mcqa", path, "resources_servers", description="Choices, checked.", domain="knowledge")
    ]
    assert list_servers("environment_servers", roots) == []


# they bring their own rows, and any model can answer them
WITHOUT_NEEDS: set[str] = set()


def test_everything_this_project_ships_can_be_listed() -> None:
    roots = [install_root()]
    benchmarks = {entry.name: entry for entry in list_benchmarks(roots)}
    assert "truthfulqa_mc1" in benchmarks
    for entry in benchmarks.values():
        assert entry.num_rows, entry.name
        assert entry.needs or entry.name in WITHOUT_NEEDS, entry.name
    for entry in [*benchmarks.values(), *list_servers("resources_servers", roots)]:
        assert entry.problem is None
        assert entry.description
        assert entry.domain


def test_listing_hundreds_of_benchmarks_is_fast(tmp_path: Path) -> None:
    for number in range(200):
        write(tmp_path, f"benchmarks/b{number}/config.yaml", CONFIG)
        write(tmp_path, f"benchmarks/b{number}/flavor.yaml", CONFIG)
    write(tmp_path, "images/resources_servers/mcqa/config.yaml", MCQA)
    start = time.perf_counter()
    assert len(list_benchmarks([tmp_path])) == 200
    assert time.perf_counter() - start < 20
