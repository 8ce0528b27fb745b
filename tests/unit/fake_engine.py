"""An engine in memory with the verbs of ``ContainerEngine``: what it was asked stands in plain attributes."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from nemo_gym.containers.engine import (
    ContainerState,
    Died,
    Endpoint,
    EngineState,
    ImageState,
    Leftovers,
    NetworkState,
    PullStep,
    RemoteImage,
)
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.errors import EngineError, EngineNotFoundError, ImageError

LOCAL = Endpoint(url="unix:///var/run/docker.sock", source="default", dial_host="127.0.0.1", is_local=True)


class FakeStdin:
    """Keeps what was sent."""

    def __init__(self, error: Exception | None = None) -> None:
        self.sent = b""
        self.closed = 0
        self.error = error

    def send(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.sent += data

    def close(self) -> None:
        self.closed += 1


class FakeEvents:
    """Deaths that a test puts in; ``end`` is the engine ending the stream."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Died | None] = queue.Queue()
        self.closed = threading.Event()

    def put(self, container_id: str, exit_code: int) -> None:
        self._queue.put(Died(container_id, exit_code))

    def end(self) -> None:
        self._queue.put(None)

    def close(self) -> None:
        self.closed.set()
        self._queue.put(None)

    def __iter__(self) -> Iterator[Died]:
        while (died := self._queue.get()) is not None:
            yield died


class FakeLog:
    """A build or pull: yields its lines, then does ``finish``, unless it is closed meanwhile."""

    def __init__(
        self, lines: Iterable[str], finish: Callable[[], None], hanging: threading.Event | None = None
    ) -> None:
        self._lines = lines
        self._finish = finish
        self._hanging = hanging
        self.closed = threading.Event()
        self.was_given_up = False

    def __iter__(self) -> Iterator[str]:
        yield from self._lines
        if self._hanging is not None:
            self._hanging.set()
            assert self.closed.wait(10), "a build that hangs was never closed"
        if self.closed.is_set():
            self.was_given_up = True
            raise ImageError("given up")
        self._finish()

    def close(self) -> None:
        self.closed.set()


class FakePull:
    """A pull: yields its steps, then does ``finish``; where it hangs, it does so until it is closed."""

    def __init__(
        self, steps: Iterable[PullStep], finish: Callable[[], None], hanging: threading.Event | None = None
    ) -> None:
        self._log = FakeLog((), finish, hanging)
        self._steps = steps

    @property
    def closed(self) -> threading.Event:
        return self._log.closed

    def __iter__(self) -> Iterator[PullStep]:
        yield from self._steps
        for _ in self._log:
            raise AssertionError("it has no lines")

    def close(self) -> None:
        self._log.close()


@dataclass
class FakeEngine:
    """Scripts: ``fail_build`` and ``hang_build`` by tag prefix (where both are, the failure comes when the other one
    hangs), ``fail_push`` and ``hang_push`` likewise, ``errors`` by verb (each raised once, in order).
    """

    endpoint: Endpoint = LOCAL
    images: dict[str, str] = field(default_factory=dict)
    pullable: set[str] = field(default_factory=set)
    platforms: dict[str, str] = field(default_factory=dict)
    pull_errors: dict[str, list[Exception]] = field(default_factory=dict)
    pull_steps: dict[str, list[PullStep]] = field(default_factory=dict)
    hang_pull: str = "\0"
    build_lines: Sequence[str] = ("Step 1\n", "\n")
    data_root: str = ""
    pulls: list[FakePull] = field(default_factory=list)
    remote_images: dict[str, RemoteImage] = field(default_factory=dict)
    state: EngineState = field(default_factory=lambda: EngineState("20.10.24", "1.41", "linux/amd64"))
    containers: dict[str, ContainerState] = field(default_factory=dict)
    networks: dict[str, Mapping[str, str]] = field(default_factory=dict)
    internal_networks: set[str] = field(default_factory=set)
    volumes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    fail_build: str = "\0"
    hang_build: str = "\0"
    fail_push: str = "\0"
    hang_push: str = "\0"
    build_error: str = ""
    push_lines: int = 2
    history: str = ""
    image_labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    repo_digests: dict[str, tuple[str, ...]] = field(default_factory=dict)
    layers_below: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    hanging: threading.Event = field(default_factory=threading.Event)
    calls: Counter[str] = field(default_factory=Counter)
    specs: list[ContainerSpec] = field(default_factory=list)
    builds: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[str, FakeLog] = field(default_factory=dict)
    streams: list[FakeEvents] = field(default_factory=list)
    stopped: list[tuple[str, int]] = field(default_factory=list)
    removed_images: list[str] = field(default_factory=list)
    swept_stages: list[tuple[str, int]] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _called(self, verb: str) -> None:
        with self._lock:
            self.calls[verb] += 1
            if self.errors.get(verb):
                raise self.errors[verb].pop(0)

    def close(self) -> None:
        self._called("close")

    def find_image_id(self, reference: str) -> str | None:
        self._called("find_image_id")
        return self.images.get(reference)

    def build_image(
        self, context: BinaryIO, *, tag: str, build_args: Mapping[str, str], labels: Mapping[str, str]
    ) -> FakeLog:
        self._called("build_image")
        tar = context.read()
        with self._lock:
            self.builds.append({"tag": tag, "tar": tar, "build_args": dict(build_args), "labels": dict(labels)})

        def finish() -> None:
            if tag.startswith(self.fail_build):
                assert self.hang_build == "\0" or self.hanging.wait(10)
                raise ImageError(self.build_error or f"building {tag} failed", log_tail="the end of the log")
            self.images[tag] = f"sha256:{next(self._ids):012x}{0:052x}"

        hanging = self.hanging if tag.startswith(self.hang_build) else None
        log = FakeLog(self.build_lines, finish, hanging)
        self.logs[tag] = log
        return log

    def pull_image(self, reference: str, *, silence_s: float, platform: str = "") -> FakePull:
        self._called("pull_image")
        if platform:
            self.platforms.setdefault(reference, platform)

        def finish() -> None:
            if self.pull_errors.get(reference):
                raise self.pull_errors[reference].pop(0)
            if reference not in self.pullable:
                raise ImageError(f"pulling {reference} failed", log_tail="no registry answers")
            image_id = f"sha256:{next(self._ids):012x}{0:052x}"
            self.images[reference] = image_id
            if "@" in reference:
                self.repo_digests.setdefault(image_id, (reference,))

        hanging = self.hanging if reference.startswith(self.hang_pull) else None
        steps = self.pull_steps.get(reference, [PullStep("", "Pulling from x")])
        pull = FakePull(steps, finish, hanging)
        self.pulls.append(pull)
        return pull

    def read_remote_image(self, reference: str) -> RemoteImage:
        self._called("read_remote_image")
        try:
            return self.remote_images[reference]
        except KeyError:
            raise EngineError(f"manifest for {reference} not found: manifest unknown", status=404) from None

    def read_state(self) -> EngineState:
        self._called("read_state")
        return self.state

    def read_data_root(self) -> str:
        self._called("read_data_root")
        return self.data_root

    def find_image(self, reference: str) -> ImageState | None:
        self._called("find_image")
        image_id = self.images.get(reference, reference)
        tags = tuple(tag for tag, found in self.images.items() if found == image_id)
        if not tags:
            return None
        labels: dict[str, str] = {}
        for build in self.builds:
            labels = build["labels"] if build["tag"] in tags else labels
        labels = self.image_labels.get(image_id, labels)
        digests = self.repo_digests.get(image_id, ())
        layers = (*self.layers_below.get(labels.get("nemo-gym.base-image", ""), ()), image_id)
        self.layers_below[image_id] = layers
        platform = self.platforms.get(reference, "linux/amd64")
        return ImageState(
            image_id, tags, digests, labels, "2026-11-29T17:00:00.5Z", 1000 * len(layers), layers, platform
        )

    def read_history(self, reference: str) -> str:
        self._called("read_history")
        return self.history

    def list_images(self, label: str) -> list[ImageState]:
        self._called("list_images")
        found = [self.find_image(image_id) for image_id in dict.fromkeys(self.images.values())]
        return [image for image in found if image is not None and _matches(image.labels, label)]

    def remove_image(self, reference: str) -> None:
        self._called("remove_image")
        self.removed_images.append(reference)
        self.images.pop(reference, None)

    def tag_image(self, image_id: str, reference: str) -> None:
        self._called("tag_image")
        self.images[reference] = image_id

    def push_image(self, reference: str) -> FakeLog:
        self._called("push_image")
        repository = reference.rpartition(":")[0]

        def finish() -> None:
            if repository.startswith(self.fail_push):
                assert self.hang_push == "\0" or self.hanging.wait(10)
                raise ImageError(f"pushing {reference} failed: denied")
            self.repo_digests[self.images[reference]] = (f"{repository}@sha256:{'d1' * 32}",)

        lines = ["Pushing\n", f"tag: digest: sha256:{'d1' * 32} size: 1\n"][: self.push_lines]
        log = FakeLog(lines, finish, self.hanging if repository.startswith(self.hang_push) else None)
        self.logs[reference] = log
        return log

    def run_once(self, image: str, command: Sequence[str], labels: Mapping[str, str]) -> str:
        self._called("run_once")
        return self.outputs.get(image, "{}")

    def find_dangling_images(self, label: str) -> set[str]:
        self._called("find_dangling_images")
        return {f"sha256:stage-of-{build['tag']}" for build in self.builds}

    def remove_dangling_images(self, label: str, *, older_than_hours: int) -> None:
        self._called("remove_dangling_images")
        self.swept_stages.append((label, older_than_hours))

    def create_network(self, name: str, labels: Mapping[str, str], *, internal: bool = False) -> NetworkState:
        self._called("create_network")
        if internal:
            self.internal_networks.add(name)
        self.networks[name] = dict(labels)
        return NetworkState(id=name, name=name, gateway="172.30.0.1", subnet="172.30.0.0/16")

    def create_container(self, spec: ContainerSpec) -> str:
        self._called("create_container")
        self.specs.append(spec)
        port = spec.publish.port if spec.publish is not None else None
        return self.add(spec.name, dict(spec.labels), status="created", host_ports=(port,) if port else ())

    def open_stdin(self, container_id: str) -> FakeStdin:
        self._called("open_stdin")
        return FakeStdin()

    def start_container(self, container_id: str) -> None:
        self._called("start_container")
        self.change(container_id, status="running")

    def stop_container(self, container_id: str, grace_s: int) -> None:
        self._called("stop_container")
        self.stopped.append((container_id, grace_s))

    def inspect_container(self, container_id: str) -> ContainerState:
        self._called("inspect_container")
        try:
            return self.containers[container_id]
        except KeyError:
            raise EngineNotFoundError(f"No such container: {container_id}", status=404) from None

    def read_log(self, container_id: str, tail_lines: int = 60) -> str:
        self._called("read_log")
        return ""

    def deaths(self, label: str) -> FakeEvents:
        self._called("deaths")
        self.streams.append(FakeEvents())
        return self.streams[-1]

    def list_containers(self, label: str) -> list[ContainerState]:
        self._called("list_containers")
        return [found for found in self.containers.values() if _matches(found.labels, label)]

    def find_leftovers(self, label: str) -> Leftovers:
        self._called("find_leftovers")
        return Leftovers(
            containers=tuple(name for name, found in self.containers.items() if _matches(found.labels, label)),
            networks=tuple(name for name, labels in self.networks.items() if _matches(labels, label)),
            volumes=tuple(name for name, labels in self.volumes.items() if _matches(labels, label)),
        )

    def list_network_labels(self, label: str) -> list[Mapping[str, str]]:
        self._called("list_network_labels")
        return [labels for labels in self.networks.values() if _matches(labels, label)]

    def remove_container(self, container_id: str) -> None:
        self._called("remove_container")
        self.containers.pop(container_id, None)

    def remove_network(self, network_id: str) -> None:
        self._called("remove_network")
        self.networks.pop(network_id, None)

    def remove_volume(self, name: str) -> None:
        self._called("remove_volume")
        self.volumes.pop(name, None)

    # -- for tests ---------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        *,
        status: str = "running",
        host_ports: tuple[int, ...] = (),
        address: str = "127.0.0.1",
    ) -> str:
        """A container that is there, published at these ports of ``address``; its ID."""
        container_id = f"id-{name}"
        bindings = tuple((address, port) for port in host_ports)
        self.containers[container_id] = ContainerState(
            container_id, name, status, labels or {}, None, False, "", bindings
        )
        return container_id

    def change(self, container_id: str, **fields: Any) -> None:
        """Change what ``inspect_container`` says of a container; ``host_ports`` are those of 127.0.0.1."""
        if "host_ports" in fields:
            fields["bindings"] = tuple(("127.0.0.1", port) for port in fields.pop("host_ports"))
        self.containers[container_id] = replace(self.containers[container_id], **fields)

    def kill(self, container_id: str, exit_code: int, *, oom_killed: bool = False, error: str = "") -> None:
        """Let a container be dead (no event is sent)."""
        self.change(container_id, status="exited", exit_code=exit_code, oom_killed=oom_killed, error=error)


def _matches(labels: Mapping[str, str], label: str) -> bool:
    key, equals, value = label.partition("=")
    return not label or (key in labels and (not equals or labels[key] == value))
