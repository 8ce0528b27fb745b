"""What a Docker engine is, what it can be told to pull, and what it hears from a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import docker
import docker.errors
import requests
import urllib3

from nemo_gym.containers.docker_errors import engine_error, translated
from nemo_gym.containers.docker_streams import PullLog
from nemo_gym.containers.engine import EngineState, RemoteImage
from nemo_gym.errors import EngineError


class DockerPulls:
    """The verbs of ``ContainerEngine`` for images that are still in a registry.

    The SDK adds the user's credentials: docker's own config, its credential stores and helpers.
    """

    _client: docker.APIClient
    _endpoint_client: Callable[[], docker.APIClient]

    @translated
    def read_state(self) -> EngineState:
        found = self._client.version()
        return EngineState(
            version=str(found.get("Version") or "unknown"),
            api_version=str(found["ApiVersion"]),
            platform=f"{found.get('Os')}/{found.get('Arch')}",
        )

    @translated
    def read_data_root(self) -> str:
        return str(self._client.info().get("DockerRootDir") or "")

    @translated
    def pull_image(self, reference: str, *, silence_s: float, platform: str = "") -> PullLog:
        client = self._endpoint_client()
        _limit_silence(client, silence_s)
        return PullLog(
            client,
            f"pulling {reference}",
            lambda own: own.pull(reference, stream=True, decode=True, platform=platform or None),
        )

    def read_remote_image(self, reference: str) -> RemoteImage:
        try:
            found = self._client.inspect_distribution(reference)
        except docker.errors.APIError as error:
            raise engine_error(error) from error
        except (
            docker.errors.DockerException,  # of a credential helper, too
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            raise EngineError(str(error)) from error
        named = [f"{entry.get('os')}/{entry.get('architecture')}" for entry in found.get("Platforms") or []]
        return RemoteImage(digest=str(found["Descriptor"]["digest"]), platforms=tuple(dict.fromkeys(named)))


def _limit_silence(client: docker.APIClient, silence_s: float) -> None:
    """Let no answer of the engine keep a reader waiting for longer, its first word included.

    The SDK sets no such limit for pulls, and a reader that waits for the first word cannot be woken otherwise.
    """
    send = client.send

    def limited(request: requests.PreparedRequest, **arguments: Any) -> requests.Response:
        return send(request, **{**arguments, "timeout": silence_s})

    client.send = limited  # type: ignore[method-assign]
