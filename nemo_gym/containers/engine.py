"""The seam to a container engine: a handful of verbs, and the values they return.

``docker_engine.DockerEngine`` speaks to a real one. Errors are those of ``nemo_gym.errors``; no SDK type crosses
this line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from nemo_gym.containers.spec import ContainerSpec


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the engine answers. ``dial_host`` is the host its published ports are reached at."""

    url: str
    source: str  # what named it: "DOCKER_HOST", "context 'x'", "default"
    dial_host: str
    is_local: bool


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine is. ``platform`` is what its images have to be for: ``linux/amd64``."""

    version: str
    api_version: str
    platform: str


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """What a registry says of an image: its digest, and each platform that it is for."""

    digest: str
    platforms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PullStep:
    """One message of a pull. ``layer`` is empty for those about the whole; bytes are 0 where they are not told."""

    layer: str
    status: str
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NetworkState:
    """A bridge network. ``gateway`` is its address on the engine's host, ``subnet`` in CIDR notation."""

    id: str
    name: str
    gateway: str
    subnet: str


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What the engine says of a container. ``exit_code`` is None while it has not exited.

    ``bindings`` are the addresses and TCP ports of the engine's machine that it is published at.
    """

    id: str
    name: str
    status: str
    labels: Mapping[str, str]
    exit_code: int | None
    oom_killed: bool
    error: str
    bindings: tuple[tuple[str, int], ...] = ()
    started_at: str = ""

    @property
    def host_port(self) -> int | None:
        """The published port on the host; None when it has none (yet)."""
        return self.bindings[0][1] if self.bindings else None

    @property
    def is_dead(self) -> bool:
        """Whether it ran and no longer does."""
        return self.status in ("exited", "dead")


@dataclass(frozen=True, slots=True)
class ImageState:
    """An image on the engine. ``created`` is UTC as ISO 8601; ``size_bytes`` counts every layer, the base's too.

    ``platform`` is what it is for: ``linux/amd64``. ``command`` is its ENTRYPOINT and CMD, what a container of it runs
    unless told otherwise; ``user`` whom as, empty for root.
    """

    id: str
    references: tuple[str, ...]
    repo_digests: tuple[str, ...]
    labels: Mapping[str, str]
    created: str
    size_bytes: int
    layers: tuple[str, ...]
    platform: str = ""
    command: tuple[str, ...] = ()
    user: str = ""

    def own_bytes(self, base: ImageState | None) -> int | None:
        """Its size on top of ``base``; None when it does not stand on it."""
        if base is None or self.layers[: len(base.layers)] != base.layers:
            return None
        return self.size_bytes - base.size_bytes


@dataclass(frozen=True, slots=True)
class Died:
    """One death, as the engine's event stream told it."""

    container_id: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a container's output. ``time`` is the engine's, in UTC with nanoseconds, so that it sorts as text."""

    time: str
    text: str


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What of a label is on the engine: identifiers of containers, networks and volumes."""

    containers: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.containers or self.networks or self.volumes)

    def named(self) -> list[str]:
        """Each piece with its kind, for a message."""
        return [
            *(f"container {name}" for name in self.containers),
            *(f"network {name}" for name in self.networks),
            *(f"volume {name}" for name in self.volumes),
        ]


class Stdin(Protocol):
    """The standard input of a running container."""

    def send(self, data: bytes) -> None:
        """Write all of ``data``; ``EngineError`` when the container is gone."""

    def close(self) -> None:
        """Close it. Idempotent."""


class LogStream(Protocol):
    """The log of a build or pull under way, piece by piece; closing it ends the work on the engine."""

    def __iter__(self) -> Iterator[str]: ...

    def close(self) -> None:
        """Give up, from any thread. Idempotent."""


class PullStream(Protocol):
    """A pull under way, step by step; closing it ends the work on the engine."""

    def __iter__(self) -> Iterator[PullStep]: ...

    def close(self) -> None:
        """Give up, from any thread. Idempotent."""


class ContainerLog(Protocol):
    """A container's log, line by line. Ends at its end, and when it is closed."""

    def __iter__(self) -> Iterator[LogLine]: ...

    def close(self) -> None:
        """End the iteration from another thread. Idempotent."""


class EventStream(Protocol):
    """Deaths of containers with one label, as they happen."""

    def __iter__(self) -> Iterator[Died]: ...

    def close(self) -> None:
        """End the iteration from another thread. Idempotent."""


class ContainerEngine(Protocol):
    """The verbs this package needs of an engine. All raise ``EngineError`` or ``EngineUnavailableError``."""

    endpoint: Endpoint

    def close(self) -> None:
        """Close every connection. Idempotent."""

    def read_state(self) -> EngineState:
        """What the engine is."""

    def read_data_root(self) -> str:
        """The folder on its own machine where it keeps images; empty when it does not say."""

    # images
    def find_image_id(self, reference: str) -> str | None:
        """The ID of a local image, None when there is none."""

    def build_image(
        self, context: BinaryIO, *, tag: str, build_args: Mapping[str, str], labels: Mapping[str, str]
    ) -> LogStream:
        """Build from a tar. ``ImageError`` with the end of the log when it fails."""

    def pull_image(self, reference: str, *, silence_s: float, platform: str = "") -> PullStream:
        """Pull with the user's registry credentials. ``ImageError`` with the end of the log when it fails.

        For ``platform``, where it is not empty, in place of the engine's own.

        An engine that says nothing at all for ``silence_s`` seconds has failed.
        """

    def read_remote_image(self, reference: str) -> RemoteImage:
        """What the image's registry says, asked by the engine with the user's credentials; ``EngineError``."""

    def find_image(self, reference: str) -> ImageState | None:
        """What is known of a local image, None when there is none."""

    def read_history(self, reference: str) -> str:
        """The instructions that an image was made with, build arguments among them, as anybody who has it sees them."""

    def list_images(self, label: str) -> list[ImageState]:
        """Every tagged image that carries ``label`` (a key, or ``key=value``)."""

    def remove_image(self, reference: str) -> None:
        """Remove a tag, and the image with its last one. ``EngineError`` (409) when a container uses it."""

    def tag_image(self, image_id: str, reference: str) -> None:
        """Give an image a further ``repository:tag``."""

    def push_image(self, reference: str) -> LogStream:
        """Push ``repository:tag``. ``ImageError`` with the end of the log when it fails."""

    def run_once(self, image: str, command: Sequence[str], labels: Mapping[str, str]) -> str:
        """What a command prints in a container of its own, without a network; removed afterwards.

        ``EngineError`` when it cannot be run or fails.
        """

    def find_dangling_images(self, label: str) -> set[str]:
        """The IDs of untagged images that carry ``label`` and that no other image stands on."""

    def remove_dangling_images(self, label: str, *, older_than_hours: int) -> None:
        """Remove untagged images of that age that carry ``label`` and that nothing uses."""

    # a session's pieces
    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool = False) -> NetworkState:
        """A user-defined bridge network; an ``internal`` one leads nowhere, this host included.

        ``NoAddressRangeError`` when the engine has no address range left.
        """

    def create_container(self, spec: ContainerSpec) -> str:
        """Create on all of its networks, without starting; the container's ID."""

    def open_stdin(self, container_id: str) -> Stdin:
        """Attach to a created container's stdin, before it starts."""

    def start_container(self, container_id: str) -> None:
        """Start. ``PortTakenError`` when a fixed host port is in use."""

    def stop_container(self, container_id: str, grace_s: int) -> None:
        """SIGTERM, then SIGKILL after ``grace_s`` seconds. No error when it is already gone."""

    def inspect_container(self, container_id: str) -> ContainerState:
        """Its state now. ``EngineNotFoundError`` when it is gone."""

    def read_log(self, container_id: str, tail_lines: int) -> str:
        """The end of its standard output and error, decoded leniently."""

    def open_log(self, container_id: str, *, tail_lines: int | None, follow: bool) -> ContainerLog:
        """Its standard output and error from the last ``tail_lines`` lines on (None: all of it).

        With ``follow`` the log goes on as the container does, until that ends.
        """

    def deaths(self, label: str) -> EventStream:
        """Subscribe to deaths of containers with ``label`` (``key=value``)."""

    # finding and removing by label
    def list_containers(self, label: str) -> list[ContainerState]:
        """Every container with ``label``, running or not; every container at all when it is empty."""

    def find_leftovers(self, label: str) -> Leftovers:
        """Everything with ``label``."""

    def list_network_labels(self, label: str) -> list[Mapping[str, str]]:
        """The labels of every network with ``label``."""

    def remove_container(self, container_id: str) -> None:
        """Kill and remove with its anonymous volumes. No error when it is already gone."""

    def remove_network(self, network_id: str) -> None:
        """Remove, disconnecting what is still attached. No error when it is already gone."""

    def remove_volume(self, name: str) -> None:
        """Remove. No error when it is already gone."""
