from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config import ConfigError, sources
from nemo_gym.config.merging import merge, merge_layers
from nemo_gym.config.sources import (
    find_config_file,
    install_root,
    load_config_tree,
    load_env_file,
    root_of_config,
    search_roots,
)
from nemo_gym.config.yaml_files import dump_yaml

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file under the (empty) working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path.resolve()

    return write


def names(files: list[tuple[Path, dict[str, object]]]) -> list[str]:
    return [path.stem for path, _ in files]


def test_install_root_is_the_checkout_or_the_package_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "nemo_gym"
    monkeypatch.setattr(sources, "_PACKAGE", package)
    assert install_root() == package / "_data"
    for folder in ("images", "benchmarks"):
        (tmp_path / "lib" / folder).mkdir(parents=True)
    assert install_root() == package / "_data"
    assert sources.is_package_data(install_root())
    (tmp_path / "lib" / "pyproject.toml").touch()
    assert install_root() == tmp_path / "lib"
    assert not sources.is_package_data(install_root())


def test_search_roots_in_order_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder in (one, two, three):
        folder.mkdir()
    (tmp_path / "link").symlink_to(one)
    monkeypatch.chdir(three)
    monkeypatch.setenv(
        "NEMO_GYM_EXTRA_ROOTS", os.pathsep.join([str(one), "", str(tmp_path / "gone"), str(tmp_path / "link")])
    )
    assert search_roots([two]) == [two.resolve(), one.resolve(), three.resolve(), install_root()]
    assert search_roots([two, str(one)]) == search_roots([two])
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS")
    assert search_roots() == [three.resolve(), install_root()]
    with pytest.raises(ConfigError, match=r"Search directory 'gone' is not a folder \(looked at .*/three/gone\)"):
        search_roots(["gone"])


def test_a_home_that_is_not_there_is_told_with_what_named_it(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^A search directory is '~no\.such\.user', and there is no user"):
        search_roots(["~no.such.user"])
    with pytest.raises(
        ConfigError, match=r"^A config file \(wanted by x\.yaml\) is '~draft\.yaml', and .*\./~draft\.yaml$"
    ):
        find_config_file("~draft.yaml", [tmp_path], wanted_by="x.yaml")
    assert (
        find_config_file("./~draft.yaml", [tmp_path, write("r/~draft.yaml", "").parent]) == tmp_path / "r/~draft.yaml"
    )
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", "~no.such.user")
    with pytest.raises(
        ConfigError, match=r"^A folder in NEMO_GYM_EXTRA_ROOTS is '~no\.such\.user', and there is no user"
    ):
        search_roots()


def test_a_path_is_looked_for_in_each_root(write: Write, tmp_path: Path) -> None:
    first, second = write("r1/a/x.yaml", ""), write("r2/a/x.yaml", "")
    only = write("r2/a/y.yaml", "")
    roots = [tmp_path / "r1", tmp_path / "r2"]
    assert find_config_file("a/x.yaml", roots) == first
    assert find_config_file("a/y.yaml", roots) == only
    assert find_config_file(second, roots) == second


def test_a_missing_file_lists_the_places_and_the_nearest_name(write: Write, tmp_path: Path) -> None:
    write("r2/benchmarks/gsm8k/config.yaml", "")
    roots = [tmp_path / "r1", tmp_path / "r2"]
    with pytest.raises(ConfigError) as caught:
        find_config_file("benchmarks/gsm8/config.yaml", roots, wanted_by="/x/top.yaml")
    assert str(caught.value) == (
        "No config file 'benchmarks/gsm8/config.yaml' (wanted by /x/top.yaml). Looked for:\n"
        f"  {tmp_path}/r1/benchmarks/gsm8/config.yaml\n"
        f"  {tmp_path}/r2/benchmarks/gsm8/config.yaml\n"
        "Did you mean benchmarks/gsm8k/config.yaml?"
    )
    with pytest.raises(ConfigError, match=r"\(this is a folder\)\nDid you mean benchmarks/gsm8k/config\.yaml\?"):
        find_config_file("benchmarks/gsm8k", roots)
    with pytest.raises(ConfigError, match="Interpolations are not read in config_paths"):
        find_config_file("${x}/a.yaml", roots)


def test_an_includer_stands_above_what_it_pulls_in_and_later_siblings_win(write: Write, tmp_path: Path) -> None:
    write("a.yaml", "{config_paths: [b.yaml, c.yaml], own: a}")
    write("b.yaml", "{config_paths: [b1.yaml], v: b, own: b}")
    write("b1.yaml", "{v: b1}")
    write("c.yaml", "{config_paths: [c1.yaml], own: c}")
    write("c1.yaml", "{v: c1}")
    files = load_config_tree(["a.yaml"], [tmp_path])
    assert names(files) == ["b1", "b", "c1", "c", "a"]
    assert merge_layers([content for _, content in files]) == {"v": "c1", "own": "a"}


def test_a_file_pulled_in_twice_counts_at_its_highest_place(write: Write, tmp_path: Path) -> None:
    write("a.yaml", "{config_paths: [b.yaml, c.yaml]}")
    write("b.yaml", "{config_paths: [d.yaml], v: b, w: b}")
    write("c.yaml", "{config_paths: [./d.yaml]}")
    write("d.yaml", "{v: d, u: d}")
    files = load_config_tree(["a.yaml", "a.yaml"], [tmp_path])
    assert names(files) == ["b", "d", "c", "a"]
    d, b = {"v": "d", "u": "d"}, {"v": "b", "w": "b"}
    assert merge_layers([content for _, content in files]) == merge(merge(d, b), d)


def test_many_includers_of_one_file_are_read_once(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = 60  # 2^60 ways lead to the last two
    for level in range(levels):
        write(f"l{level}a.yaml", f"config_paths: [l{level + 1}a.yaml, l{level + 1}b.yaml]")
        write(f"l{level}b.yaml", f"config_paths: [l{level + 1}a.yaml, l{level + 1}b.yaml]")
    write(f"l{levels}a.yaml", "x: 1")
    write(f"l{levels}b.yaml", "y: 1")
    read: list[Path] = []
    load = sources.load_yaml_file
    monkeypatch.setattr(sources, "load_yaml_file", lambda path: read.append(path) or load(path))
    files = load_config_tree(["l0a.yaml"], [tmp_path])
    assert len(read) == len(files) == 2 * levels + 1


def test_a_circle_is_named(write: Write, tmp_path: Path) -> None:
    a, b = write("a.yaml", "config_paths: [b.yaml]"), write("b.yaml", "config_paths: [x/../a.yaml]")
    write("x/y.yaml", "")
    write("top.yaml", "config_paths: [a.yaml]")
    with pytest.raises(ConfigError) as caught:
        load_config_tree(["top.yaml"], [tmp_path])
    assert str(caught.value) == (
        "These config files pull one another in, in a circle:\n"
        f"  {a}\n    config_paths -> {b}\n  {b}\n    config_paths -> {a}\n"
        "Take one of these entries out of its file's config_paths."
    )
    write("self.yaml", "config_paths: [self.yaml]")
    with pytest.raises(ConfigError, match="in a circle"):
        load_config_tree(["self.yaml"], [tmp_path])


@pytest.mark.parametrize("value", ["b.yaml", "{a: b}", "[1]", "['']", "5"])
def test_config_paths_must_be_a_list_of_paths(write: Write, tmp_path: Path, value: str) -> None:
    path = write("a.yaml", f"config_paths: {value}")
    with pytest.raises(
        ConfigError, match=r"config_paths must be a list of paths, such as \[benchmarks/x/config.yaml\]; found"
    ):
        load_config_tree([path], [tmp_path])


def test_env_yaml_of_the_working_directory_else_of_the_install_root(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "nemo_gym"
    monkeypatch.setattr(sources, "_PACKAGE", package)
    assert load_env_file() is None
    installed = write("nemo_gym/_data/env.yaml", "a: 1")
    assert load_env_file() == (installed, {"a": 1})
    write("env.yaml", "a: 2")
    assert load_env_file() == (tmp_path / "env.yaml", {"a": 2})


def test_the_root_of_a_config_is_what_its_paths_are_meant_from(tmp_path: Path) -> None:
    inner = tmp_path / "r" / "inner"
    roots = [tmp_path / "r", inner]
    assert root_of_config(inner / "benchmarks" / "x" / "config.yaml", roots) == inner
    assert root_of_config(tmp_path / "r" / "benchmarks" / "x" / "config.yaml", roots) == tmp_path / "r"
    assert root_of_config(tmp_path / "q" / "benchmarks" / "x" / "config.yaml", roots) == tmp_path / "q"
    assert root_of_config(tmp_path / "q" / "x.yaml", roots) == tmp_path / "q"
    assert root_of_config(inner / "x.yaml", roots) == inner


def test_a_working_directory_inside_a_benchmark_is_not_its_root(tmp_path: Path) -> None:
    benchmark = tmp_path / "benchmarks" / "x"
    assert root_of_config(benchmark / "config.yaml", [benchmark, tmp_path]) == tmp_path
    assert root_of_config(benchmark / "config.yaml", [benchmark]) == tmp_path


@st.composite
def _trees(draw: st.DrawFn) -> list[tuple[list[int], dict[str, int]]]:
    """Files by number: the (later) files that each pulls in, and the keys it sets to its number."""
    count = draw(st.integers(1, 6))
    files = []
    for number in range(count):
        later = range(number + 1, count)
        pulled = draw(st.lists(st.sampled_from(later), max_size=3)) if later else []
        keys = draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True))
        files.append((pulled, dict.fromkeys(keys, number)))
    return files


@settings(deadline=None, max_examples=60)
@given(_trees())
def test_any_tree_gives_what_its_definition_says(files: list[tuple[list[int], dict[str, int]]]) -> None:
    def value(number: int) -> dict[str, Any]:
        pulled, own = files[number]
        return merge(merge_layers([value(other) for other in pulled]), own)

    with tempfile.TemporaryDirectory() as folder:
        for number, (pulled, own) in enumerate(files):
            content = {"config_paths": [f"{other}.yaml" for other in pulled], **own}
            (Path(folder) / f"{number}.yaml").write_text(dump_yaml(content))
        loaded = load_config_tree(["0.yaml"], [Path(folder)])
    assert merge_layers([content for _, content in loaded]) == value(0)
    assert len({path for path, _ in loaded}) == len(loaded)
