"""An engine of a test's own on this machine: it may be stopped, and run out of addresses, while others work on.

It lives in a network namespace, as does whoever serves on it, so that neither its bridges nor its firewall rules meet
those of the machine's own engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from nemo_gym.config.resolve import load_config, to_plain
from nemo_gym.config.sources import install_root
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.images import ensure_base, image_files
from nemo_gym.deployment.server_images import ensure_server_images
from nemo_gym.deployment.topology import build_topology
from nemo_gym.environment.serving import serving_config_paths
from tests.support.namespaces import OtherMachine, other_machine
from tests.support.second_engine import copy_images
from tests.support.stub_servers import BENCHMARK, MODEL_TYPE

START_S = 60.0
POOL = "10.213.0.0/24"


class PrivateEngine:
    """A dockerd with one address range, for one session's network."""

    def __init__(self, folder: Path, machine: OtherMachine) -> None:
        self._folder = folder
        self._machine = machine
        self._daemon: subprocess.Popen[str] | None = None
        self.socket = folder / "docker.sock"
        self.wrapper = ("nsenter", f"--net=/run/netns/{machine.namespace}")
        self.environ = {"DOCKER_HOST": f"unix://{self.socket}"}

    def start(self) -> None:
        settings = {"default-address-pools": [{"base": POOL, "size": 24}], "bridge": "none"}
        (self._folder / "daemon.json").write_text(json.dumps(settings), encoding="utf-8")
        command = ["dockerd", "--config-file", f"{self._folder}/daemon.json", "--host", f"unix://{self.socket}"]
        command += ["--data-root", f"{self._folder}/data", "--exec-root", f"{self._folder}/exec"]
        command += ["--pidfile", f"{self._folder}/pid"]
        with (self._folder / "log").open("a", encoding="utf-8") as log:
            # it outlives the test that restarts it, and is none of what that test may leave behind
            environ = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
            self._daemon = self._machine.popen(command, stdout=log, stderr=log, start_new_session=True, env=environ)
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(docker.errors.DockerException, requests.RequestException, OSError):
                # without the SDK first, which leaves its socket open when nobody listens
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(str(self.socket))
                with self.client() as client:
                    client.ping()
                return
            log_text = (self._folder / "log").read_text(encoding="utf-8")
            assert self._daemon.poll() is None, log_text[-3000:]
            assert time.monotonic() < deadline, log_text[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it, and with it every container."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(60)
            self._daemon = None

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.APIClient]:
        with contextlib.closing(docker.APIClient(f"unix://{self.socket}", version="1.41", timeout=60)) as client:
            yield client

    def pieces(self) -> list[str]:
        """Every container, network and volume on it, but for the engine's own networks."""
        with self.client() as client:
            found = [c["Names"][0] for c in client.containers(all=True)]
            found += [n["Name"] for n in client.networks() if n["Name"] not in ("bridge", "host", "none")]
            return found + [volume["Name"] for volume in client.volumes()["Volumes"] or []]


@contextlib.contextmanager
def private_engine(source: docker.APIClient) -> Iterator[PrivateEngine]:
    """A private engine with the images of the stub servers, which ``NEMO_GYM_EXTRA_ROOTS`` must lead to."""
    with other_machine() as machine, contextlib.ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="ng", dir="/var/tmp"))  # short: paths of sockets have 107 characters
        cleanup.callback(shutil.rmtree, folder)
        engine = PrivateEngine(folder, machine)
        cleanup.callback(engine.stop)
        engine.start()
        with engine.client() as client:
            copy_images(source, client, stub_images())
        yield engine


def stub_images() -> list[str]:
    """The images that serving the stubs needs, built where they are missing."""
    config: dict[str, Any] = to_plain(load_config(serving_config_paths(BENCHMARK, MODEL_TYPE), {}, serving=True))
    engine = DockerEngine.connect(os.environ)
    try:
        base, python = ensure_base(engine, image_files(install_root(), os.environ))
        return [python, base, *ensure_server_images(engine, build_topology(config), ()).values()]
    finally:
        engine.close()
