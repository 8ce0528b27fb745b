"""What a Docker engine knows of its images, and what is done with them besides building and pulling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import docker
import docker.errors

from nemo_gym.containers.docker_errors import translated
from nemo_gym.containers.docker_streams import ImageLog
from nemo_gym.containers.engine import ImageState
from nemo_gym.containers.spec import MIB
from nemo_gym.errors import EngineError

_ONE_COMMAND_S = 60


class DockerImages:
    """The verbs of ``ContainerEngine`` for images that are there."""

    _client: docker.APIClient
    _endpoint_client: Callable[[], docker.APIClient]  # one of its own, for a stream that may be closed alone

    @translated
    def find_image(self, reference: str) -> ImageState | None:
        try:
            return _image_state(self._client.inspect_image(reference))
        except docker.errors.NotFound:
            return None

    @translated
    def read_history(self, reference: str) -> str:
        return "\n".join(layer.get("CreatedBy") or "" for layer in self._client.history(reference))

    @translated
    def list_images(self, label: str) -> list[ImageState]:
        found = []
        for listed in self._client.images(filters={"label": label, "dangling": False}):
            with contextlib.suppress(docker.errors.NotFound):  # removed meanwhile
                found.append(_image_state(self._client.inspect_image(listed["Id"])))
        return found

    @translated
    def find_dangling_images(self, label: str) -> set[str]:
        return {image["Id"] for image in self._client.images(filters={"label": label, "dangling": True})}

    @translated
    def remove_image(self, reference: str) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            self._client.remove_image(reference)

    @translated
    def tag_image(self, image_id: str, reference: str) -> None:
        repository, _, tag = reference.rpartition(":")
        self._client.tag(image_id, repository, tag)

    @translated
    def push_image(self, reference: str) -> ImageLog:
        repository, _, tag = reference.rpartition(":")
        return ImageLog(
            self._endpoint_client(),
            f"pushing {reference}",
            lambda client: client.push(repository, tag, stream=True, decode=True),
        )

    @translated
    def run_once(self, image: str, command: Sequence[str], labels: Mapping[str, str]) -> str:
        container_id = str(self._client.create_container_from_config(_one_command(image, command, labels))["Id"])
        try:
            self._client.start(container_id)
            status = self._client.wait(container_id, timeout=_ONE_COMMAND_S)["StatusCode"]
            output = bytes(self._client.logs(container_id, stdout=True, stderr=status != 0)).decode(errors="replace")
            if status != 0:
                raise EngineError(f"{command[0]} in {image} exits with {status}: {output[-500:].strip()}")
            return output
        finally:
            with contextlib.suppress(docker.errors.NotFound):
                self._client.remove_container(container_id, v=True, force=True)


def _one_command(image: str, command: Sequence[str], labels: Mapping[str, str]) -> dict[str, Any]:
    """The body of ``POST /containers/create`` for a command that needs nothing but the image."""
    return {
        "Image": image,
        "Entrypoint": [command[0]],
        "Cmd": list(command[1:]),
        "Labels": dict(labels),
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "PidsLimit": 64,
            "Memory": 512 * MIB,
        },
    }


def _image_state(found: Mapping[str, Any]) -> ImageState:
    config = found.get("Config") or {}
    return ImageState(
        id=found["Id"],
        references=tuple(found.get("RepoTags") or ()),
        repo_digests=tuple(found.get("RepoDigests") or ()),
        labels=config.get("Labels") or {},
        created=found.get("Created") or "",
        size_bytes=int(found.get("Size") or 0),
        layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
        platform=f"{found['Os']}/{found['Architecture']}" if found.get("Os") else "",
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        user=config.get("User") or "",
    )
