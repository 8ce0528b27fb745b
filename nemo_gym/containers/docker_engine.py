"""A Docker engine behind the ``ContainerEngine`` verbs.

With its parts ``docker_images``, ``docker_streams`` and ``docker_errors`` the only code that imports the SDK.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Mapping
from typing import Any, BinaryIO

import docker
import docker.constants
import docker.credentials
import docker.errors
import requests
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

from nemo_gym.containers.docker_errors import translated
from nemo_gym.containers.docker_images import DockerImages
from nemo_gym.containers.docker_pulls import DockerPulls
from nemo_gym.containers.docker_streams import ContainerLogLines, DeathEvents, ImageLog, SocketStdin
from nemo_gym.containers.engine import (
    ContainerState,
    Endpoint,
    Leftovers,
    NetworkState,
)
from nemo_gym.containers.engine_endpoint import context_tls, find_endpoint, tls_config, unreachable_message
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.errors import (
    EngineUnavailableError,
)

CALL_TIMEOUT_S = 60
"""One engine call may take this long: removing a container whose disk is slow, say. Builds and pulls have none."""

LOG_TAIL_LINES = 60


class DockerEngine(DockerImages, DockerPulls):
    """A connection to a Docker engine. One may be shared by several threads."""

    def __init__(
        self, endpoint: Endpoint, tls: Any, client: docker.APIClient, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._client = client
        self._call_timeout_s = call_timeout_s

    @classmethod
    def connect(cls, environ: Mapping[str, str], call_timeout_s: float = CALL_TIMEOUT_S) -> DockerEngine:
        """Connect to the engine that ``docker`` itself would use, and make sure that it answers.

        ``call_timeout_s``: how long one call, such as a container's start, may take. Raises
        ``EngineUnavailableError`` that says where it was looked for and what to type.
        """
        endpoint = find_endpoint(environ)
        try:
            _check_socket(endpoint)
            tls = tls_config(environ) if endpoint.source == "DOCKER_HOST" else context_tls(endpoint)
            return cls(endpoint, tls, _client(endpoint, tls, timeout_s=call_timeout_s), call_timeout_s)
        except (docker.errors.DockerException, requests.RequestException, OSError, ValueError) as error:
            raise EngineUnavailableError(unreachable_message(endpoint, error)) from error

    def close(self) -> None:
        self._client.close()

    def _endpoint_client(self) -> docker.APIClient:
        return _client(self.endpoint, self._tls, str(self._client.api_version), self._call_timeout_s)

    # -- images ------------------------------------------------------------------------------------------------

    @translated
    def find_image_id(self, reference: str) -> str | None:
        try:
            return str(self._client.inspect_image(reference)["Id"])
        except docker.errors.NotFound:
            return None

    @translated
    def build_image(
        self, context: BinaryIO, *, tag: str, build_args: Mapping[str, str], labels: Mapping[str, str]
    ) -> ImageLog:
        client = self._endpoint_client()
        _spare_credentials(client)
        return ImageLog(
            client,
            f"building {tag}",
            lambda own: own.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                buildargs=dict(build_args),
                labels=dict(labels),
                rm=True,
                forcerm=True,
                decode=True,
                timeout=None,
            ),
        )

    @translated
    def remove_dangling_images(self, label: str, *, older_than_hours: int) -> None:
        filters = {"label": label, "dangling": True, "until": f"{older_than_hours}h"}
        with contextlib.suppress(docker.errors.APIError):  # another prune is under way, or a build still uses one
            self._client.prune_images(filters=filters)

    # -- a session's pieces ------------------------------------------------------------------------------------

    @translated
    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool = False) -> NetworkState:
        created = self._client.create_network(
            name,
            driver="bridge",
            labels=dict(labels),
            check_duplicate=True,
            internal=internal,
            # an internal network's gateway is still an address of this host, unless the host takes none
            options={"com.docker.network.bridge.inhibit_ipv4": "true"} if internal else None,
        )
        pool = self._client.inspect_network(created["Id"])["IPAM"]["Config"][0]
        return NetworkState(id=created["Id"], name=name, gateway=pool.get("Gateway", ""), subnet=pool["Subnet"])

    @translated
    def create_container(self, spec: ContainerSpec) -> str:
        container_id = str(self._client.create_container_from_config(**spec.to_create_kwargs())["Id"])
        for network in spec.networks[1:]:  # an engine takes one network at creation
            self._client.connect_container_to_network(container_id, network, aliases=[spec.alias])
        return container_id

    @translated
    def open_stdin(self, container_id: str) -> SocketStdin:
        return SocketStdin.attach(self._client, container_id)

    @translated
    def start_container(self, container_id: str) -> None:
        self._client.start(container_id)

    @translated
    def stop_container(self, container_id: str, grace_s: int) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            self._client.stop(container_id, timeout=grace_s)

    @translated
    def inspect_container(self, container_id: str) -> ContainerState:
        return _container_state(self._client.inspect_container(container_id))

    @translated
    def read_log(self, container_id: str, tail_lines: int = LOG_TAIL_LINES) -> str:
        raw = self._client.logs(container_id, stdout=True, stderr=True, tail=tail_lines)
        return bytes(raw).decode("utf-8", errors="replace")

    @translated
    def open_log(self, container_id: str, *, tail_lines: int | None, follow: bool) -> ContainerLogLines:
        tail: Any = "all" if tail_lines is None else tail_lines
        return ContainerLogLines(
            self._client.logs(container_id, stream=True, follow=follow, timestamps=True, tail=tail)
        )

    @translated
    def deaths(self, label: str) -> DeathEvents:
        return DeathEvents.subscribe(self._client, {"type": "container", "event": "die", "label": label})

    # -- finding and removing by label -------------------------------------------------------------------------

    @translated
    def list_containers(self, label: str) -> list[ContainerState]:
        filters = {"label": label} if label else {}
        return [_listed_container(found) for found in self._client.containers(all=True, filters=filters)]

    @translated
    def find_leftovers(self, label: str) -> Leftovers:
        filters = {"label": label}
        return Leftovers(
            containers=tuple(c["Id"] for c in self._client.containers(all=True, filters=filters)),
            networks=tuple(n["Id"] for n in self._client.networks(filters=filters)),
            volumes=tuple(v["Name"] for v in self._client.volumes(filters=filters)["Volumes"] or []),
        )

    @translated
    def list_network_labels(self, label: str) -> list[Mapping[str, str]]:
        return [network["Labels"] or {} for network in self._client.networks(filters={"label": label})]

    @translated
    def remove_container(self, container_id: str) -> None:
        try:
            self._client.remove_container(container_id, v=True, force=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            # 409: another caller (the keeper, a sweep) is removing it at this moment
            if error.response is None or error.response.status_code != 409:
                raise

    @translated
    def remove_network(self, network_id: str) -> None:
        try:
            self._client.remove_network(network_id)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.response is None or error.response.status_code != 403:
                raise
            for endpoint in self._client.inspect_network(network_id).get("Containers", {}):
                with contextlib.suppress(docker.errors.APIError):
                    self._client.disconnect_container_from_network(endpoint, network_id, force=True)
            with contextlib.suppress(docker.errors.NotFound):
                self._client.remove_network(network_id)

    @translated
    def remove_volume(self, name: str) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            self._client.remove_volume(name, force=True)


def _check_socket(endpoint: Endpoint) -> None:
    """Connect once without the SDK, which leaves its socket open when a unix socket refuses. Raises ``OSError``."""
    scheme, _, path = endpoint.url.partition("://")
    if scheme in ("unix", "http+unix"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path if path.startswith("/") else f"/{path}")


def _client(endpoint: Endpoint, tls: Any, version: str = "", timeout_s: float = CALL_TIMEOUT_S) -> docker.APIClient:
    """A client of the API ``version``, by default of the one that the engine names."""
    client = docker.APIClient(
        base_url=endpoint.url,
        # with "auto" the SDK would ask the engine before it can be told not to trust the environment
        version=version or docker.constants.MINIMUM_DOCKER_API_VERSION,
        timeout=math.ceil(timeout_s),
        tls=tls,
        max_pool_size=32,
    )
    # An environment's CA bundle and proxies are for the internet; requests would let them replace the engine's
    # own certificate authority.
    client.trust_env = False
    if version:
        return client
    with contextlib.closing(client):
        answer = client.version(api_version=False)
    if not isinstance(answer, Mapping) or "ApiVersion" not in answer:
        raise docker.errors.DockerException(f"what answers there is no Docker engine: {str(answer)[:200]}")
    return _client(endpoint, tls, str(answer["ApiVersion"]), timeout_s)


def _spare_credentials(client: Any) -> None:
    """Let a build go on without the user's credentials where a credential store of docker's config does not answer.

    The SDK asks every store before each build, also one that a removed Docker Desktop has left in the config. Builds
    on local images need none; others are refused by the registry, which says so.
    """
    add_to = client._set_auth_headers

    def lenient(headers: dict[str, str]) -> None:
        with contextlib.suppress(docker.errors.DockerException, docker.credentials.StoreError):
            add_to(headers)

    client._set_auth_headers = lenient


def published_port(engine: DockerEngine, container_id: str, deadline_s: float = 5.0) -> int | None:
    """The host port that the engine gave a started container; None when it died before it had one.

    The list can be empty for a moment after the start, so it is read again until ``deadline_s`` seconds.
    """
    retrying = Retrying(
        retry=retry_if_result(lambda state: state.host_port is None and not state.is_dead),
        wait=wait_exponential(multiplier=0.01, max=0.25),
        stop=stop_after_delay(deadline_s),
        retry_error_callback=lambda retry_state: retry_state.outcome.result() if retry_state.outcome else None,
    )
    state = retrying(engine.inspect_container, container_id)
    return state.host_port if state is not None else None


def _container_state(found: Mapping[str, Any]) -> ContainerState:
    state = found["State"]
    ports = (found.get("NetworkSettings") or {}).get("Ports") or {}
    tcp = [bindings or [] for port, bindings in ports.items() if port.endswith("/tcp")]
    bound = {(binding.get("HostIp") or "", int(binding["HostPort"])): None for bindings in tcp for binding in bindings}
    exited = state["Status"] in ("exited", "dead")
    return ContainerState(
        id=found["Id"],
        name=found["Name"].lstrip("/"),
        status=state["Status"],
        labels=found["Config"].get("Labels") or {},
        exit_code=state["ExitCode"] if exited else None,
        # the flag is also set when only a child was killed and the container lived on
        oom_killed=bool(state["OOMKilled"]) and exited and state["ExitCode"] != 0,
        error=state.get("Error") or "",
        bindings=tuple(bound),
        started_at=state.get("StartedAt") or "",
    )


def _listed_container(found: Mapping[str, Any]) -> ContainerState:
    tcp = [port for port in found.get("Ports") or [] if port.get("Type") == "tcp"]
    published = {(port.get("IP") or "", port["PublicPort"]): None for port in tcp if port.get("PublicPort")}
    return ContainerState(
        id=found["Id"],
        name=(found.get("Names") or ["/" + found["Id"][:12]])[0].lstrip("/"),
        status=found["State"],
        labels=found.get("Labels") or {},
        exit_code=None,
        oom_killed=False,
        error="",
        bindings=tuple(published),
    )
