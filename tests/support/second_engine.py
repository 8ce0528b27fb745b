"""An engine on another machine, reached over TCP: a dockerd in a network namespace, with all that it keeps its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import docker
import docker.errors
import requests

from tests.support.namespaces import OtherMachine

START_S = 60.0
STOP_S = 60.0


@contextlib.contextmanager
def second_engine(machine: OtherMachine, version: str) -> Iterator[docker.APIClient]:
    """A dockerd over there, spoken to in the API ``version``.

    It sees no bridge, firewall rule, image or container of this machine's own engine.
    """
    folder = Path(tempfile.mkdtemp(prefix="ng", dir="/var/tmp"))  # short: paths of sockets have 107 characters
    url = f"tcp://{machine.far}:2375"
    command = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    command += ["--pidfile", f"{folder}/pid", "--host", url, "--tls=false", "--config-file", f"{folder}/daemon.json"]
    (folder / "daemon.json").write_text("{}", encoding="utf-8")
    log = (folder / "log").open("w", encoding="utf-8")
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder)
        cleanup.enter_context(log)
        daemon = cleanup.enter_context(machine.popen(command, stdout=log, stderr=log, start_new_session=True))
        cleanup.callback(_stop, daemon)
        client = docker.APIClient(base_url=url, version=version, timeout=60)
        cleanup.callback(client.close)
        client.trust_env = False
        _wait_until_it_answers(client, daemon, folder / "log")
        yield client


def copy_images(source: docker.APIClient, target: docker.APIClient, names: Iterable[str]) -> None:
    """Carry images from one engine to another, layers that they share only once."""
    saved = source.get(
        f"{source.base_url}/v{source.api_version}/images/get", params={"names": list(names)}, stream=True, timeout=120
    )
    saved.raise_for_status()
    with saved:
        for message in target.load_image(saved.iter_content(1 << 20)):
            if "error" in message:
                raise AssertionError(message)


def _wait_until_it_answers(client: docker.APIClient, daemon: subprocess.Popen[str], log: Path) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            client.ping()
        except (docker.errors.DockerException, requests.RequestException):
            if daemon.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"dockerd does not answer:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)
        else:
            return


def _stop(daemon: subprocess.Popen[str]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        raise
