from __future__ import annotations

import json
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.provenance import RunRecord, Segment, masked_command, now_utc, parse_run_record
from nemo_gym.rollouts.shards import Shard


def record(**fields: Any) -> RunRecord:
    segment = Segment(started="2026-01-02T03:04:05.678Z", command=["gym"], concurrency=4, status="finished")
    given: dict[str, Any] = {
        "run_id": "r",
        "benchmark": "tiny",
        "command": ["gym", "eval", "run"],
        "versions": {"python": "3.13.1"},
        "host": {"cpus": 2},
        "plan_digest": "a" * 64,
        "config_digest": "b" * 64,
        "num_repeats": 2,
        "segments": [segment],
        "timeline": [{"segment": 0, "phase": "images", "server": "", "begin_s": 0.0, "end_s": 0.5}],
    }
    return RunRecord(**{**given, **fields})


@pytest.mark.parametrize("shard", [None, Shard(2, 4)])
def test_it_reads_back_as_it_was(shard: Shard | None) -> None:
    assert parse_run_record(record(shard=shard).to_json(), "x") == record(shard=shard)


def test_keys_of_later_versions_are_passed_over() -> None:
    document = json.loads(record().to_json())
    document["later"] = 1
    document["segments"][0]["later"] = 2
    assert parse_run_record(json.dumps(document), "x") == record()


def test_finished_is_what_the_last_segment_says() -> None:
    assert record().is_finished
    assert not record(segments=[]).is_finished
    running = Segment(started="", command=[], concurrency=1)
    assert not record(segments=[*record().segments, running]).is_finished


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"schema": "nemo-gym.run.v1"}', '{"schema": "other"}'])
def test_anything_else_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x_run\.json is no record of a run"):
        parse_run_record(text, "x_run.json")


def test_secrets_of_a_command_line() -> None:
    masked = masked_command(
        ["--model-api-key", "sk-1", "--model-api-key=sk-2", "--model", "m", "--model-api-key", "env:KEY"],
        ("--model-api-key",),
        "***",
    )
    assert masked == ["--model-api-key", "***", "--model-api-key=***", "--model", "m", "--model-api-key", "env:KEY"]


def test_times_are_utc_to_the_millisecond() -> None:
    assert len(now_utc()) == len("2026-01-02T03:04:05.678Z")
    assert now_utc().endswith("Z")
