"""The leak check can fail: each kind of planted leak, without a label of ours, is found and named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import docker

from nemo_gym.config.sources import install_root
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.images import ensure_base, image_files
from tests.support.leaks import take_snapshot, wait_for_nothing_left


def test_every_planted_leak_is_found(
    engine: docker.APIClient, our_engine: DockerEngine, temporary_folder: Path
) -> None:
    image, _ = ensure_base(our_engine, image_files(install_root(), {}))
    before = take_snapshot(engine, temporary_folder)
    container = engine.create_container(image, name="planted-container")["Id"]
    network = engine.create_network("planted-network")["Id"]
    volume = engine.create_volume("planted-volume")["Name"]
    file = temporary_folder / "planted-file"
    file.write_text("left", encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", "input()  # planted-process"], stdin=subprocess.PIPE)
    try:
        left = wait_for_nothing_left(engine, before, temporary_folder, deadline_s=0.2)
    finally:
        process.communicate()
        file.unlink()
        engine.remove_volume(volume)
        engine.remove_network(network)
        engine.remove_container(container)
    kinds = {line.split(" ")[0]: line for line in left}
    assert set(kinds) == {"container", "network", "volume", "file", "process"}
    assert all("planted" in line for line in left)
    assert wait_for_nothing_left(engine, before, temporary_folder, deadline_s=5.0) == []
