"""What ``gym new`` makes is built, served and run as it is, all of it together, outside of the checkout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.command import gym

REPOSITORIES = ("resources-servers/made-judge", "responses-api-agents/made-agent", "responses-api-models/made-model")


@pytest.fixture
def images(engine: docker.APIClient) -> Iterator[list[str]]:
    """The images of what is made here, known when the test ends, and removed then."""
    tags: list[str] = []
    yield tags
    wanted = {f"nemo-gym/{repository}" for repository in REPOSITORIES}
    tags += [tag for image in engine.images() for tag in image["RepoTags"] or () if tag.rpartition(":")[0] in wanted]
    for tag in tags:
        engine.remove_image(tag)
    assert len(tags) == len(REPOSITORIES)


def test_one_of_each_kind_built_served_and_run_together(tmp_path: Path, images: list[str]) -> None:
    gym("new", "resources-server", "made_judge", folder=tmp_path)
    gym("new", "agent", "made_agent", folder=tmp_path)
    gym("new", "model", "made_model", folder=tmp_path)
    gym("new", "benchmark", "made_rows", "--resources-server", "made_judge", "--agent", "made_agent", folder=tmp_path)
    listed = json.loads(gym("list", "benchmarks", "made_rows", "--json", folder=tmp_path))
    assert listed["config"] == str(tmp_path / "benchmarks/made_rows/config.yaml")
    gym("eval", "run", "--benchmark", "made_rows", "--model-type", "made_model", "--output", "x.jsonl", folder=tmp_path)
    results = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()]
    # the model says A whatever it is asked
    assert {result["task_id"]: (result["expected_answer"], result["reward"]) for result in results} == {
        "made_rows-1": ("A", 1.0),
        "made_rows-2": ("D", 0.0),
        "made_rows-3": ("C", 0.0),
        "made_rows-4": ("C", 0.0),
    }
    assert {result["response"]["model"] for result in results} == {"made_model"}
