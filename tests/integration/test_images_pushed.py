"""An image that was built here is pushed to a registry of one's own, and serves elsewhere by its digest."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import docker.errors
import pytest

from tests.support.command import gym
from tests.support.image_registry import ImageRegistry

NAME = "resources_servers/pushed"
CONFIG = {"made": {"resources_servers": {"pushed": {"entrypoint": "app.py", "domain": "other"}}}}


@pytest.fixture
def registry(tmp_path: Path, engine: docker.APIClient) -> Iterator[ImageRegistry]:
    with ImageRegistry(tmp_path / "registry") as running:
        yield running
    for image in engine.images():
        for name in [*(image["RepoTags"] or []), *(image["RepoDigests"] or [])]:
            if name.startswith((running.address, "nemo-gym/resources-servers/pushed:")):
                remove(engine, name)


def remove(engine: docker.APIClient, name: str) -> None:
    with contextlib.suppress(docker.errors.ImageNotFound):  # a repository's last tag takes its digests along
        engine.remove_image(name)


def tags_of(engine: docker.APIClient) -> list[str]:
    return [tag for image in engine.images() for tag in image["RepoTags"] or []]


def test_pushed_and_pulled_by_digest(registry: ImageRegistry, engine: docker.APIClient, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "images" / NAME
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(f"NAME = '{uuid.uuid4()}'\n")
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    choice = ["--config", str(tmp_path / "config.yaml"), "--search-dir", str(tmp_path / "root")]
    pushed = json.loads(gym("images", "push", f"{registry.address}/team", *choice, "--json"))
    assert set(pushed) == {"base", "registry", NAME}
    reference = pushed[NAME]
    assert reference.startswith(f"{registry.address}/team/nemo-gym/resources-servers/pushed@sha256:")

    own = next(tag for tag in tags_of(engine) if tag.startswith("nemo-gym/resources-servers/pushed:"))
    image_id = engine.inspect_image(own)["Id"]
    for name in [*engine.inspect_image(own)["RepoTags"], reference]:
        remove(engine, name)
    assert not [image for image in engine.images(all=True) if image["Id"] == image_id]
    settings = {"entrypoint": "app.py", "domain": "other", "image": {"reference": reference}}
    theirs = {"made": {"resources_servers": {"pushed": settings}}}
    (tmp_path / "config.yaml").write_text(json.dumps(theirs))
    listed = json.loads(gym("images", "build", *choice, "--json"))
    assert {entry["name"]: entry["image_id"] for entry in listed}[reference] == image_id
    lock = tmp_path / "images.lock.json"
    gym("images", "lock", *choice, "--output", str(lock))
    locked = json.loads(lock.read_text())["images"][reference]
    assert (locked["context"], locked["image_id"], locked["repo_digests"]) == (None, image_id, [reference])
