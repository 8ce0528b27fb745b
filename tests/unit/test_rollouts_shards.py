from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.shards import Shard, parse_shard


@given(st.integers(1, 60), st.integers(1, 12))
def test_shards_are_all_tasks_once_and_balanced(tasks: int, count: int) -> None:
    names = [f"t{n}" for n in range(tasks)]
    parts = [Shard(index, count).of(names) for index in range(1, min(count, tasks) + 1)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_dealt_out_one_by_one() -> None:
    assert Shard(2, 3).of(["a", "b", "c", "d", "e"]) == ["b", "e"]


def test_an_empty_shard_is_refused() -> None:
    with pytest.raises(ConfigError, match="--shard 3/4: 2 tasks make 2 shards at most"):
        Shard(3, 4).of(["a", "b"])


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3", "1.0/2"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match="as in 2/4; found"):
        parse_shard(text)


def test_names_of_files_sort_as_the_shards_do() -> None:
    assert parse_shard(" 2/4 ") == Shard(2, 4)
    assert Shard(2, 4).output_path(Path("out/x.jsonl")) == Path("out/x-2-of-4.jsonl")
    assert Shard(2, 16).output_path(Path("x.jsonl")) == Path("x-02-of-16.jsonl")
    assert Shard(2, 16).output_path(Path("x-02-of-16.jsonl")) == Path("x-02-of-16.jsonl")
