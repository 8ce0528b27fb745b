"""What ``gym images`` does: the images of one configuration or of all image folders, built, listed, pushed, pruned.

What is this package's own on an engine is told by labels alone; nothing else is ever removed.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.config_types import parse_server_instances
from nemo_gym.config.sources import install_root, search_roots
from nemo_gym.containers import images
from nemo_gym.containers.build_context import BuildContext, load_base_context, load_server_context, repository_name
from nemo_gym.containers.builds import LABEL_BASE_IMAGE, LABEL_BUILD_STAGE, LABEL_CONTEXT, LABEL_REPOSITORY, log_file
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine import ContainerEngine, ImageState, LogStream
from nemo_gym.containers.preflight import WantedImage, check_before_work, named_platforms
from nemo_gym.containers.pulls import pull_images
from nemo_gym.deployment.image_settings import find_wanted_image
from nemo_gym.deployment.server_images import find_image_folder, is_left_out, log_notices
from nemo_gym.deployment.topology import REGISTRY
from nemo_gym.errors import ConfigError, EngineError, EngineNotFoundError, ImageError

logger = logging.getLogger(__name__)

BASE = "base"
_OWN_NAMES = "nemo-gym/"
_PARALLEL_PUSHES = 3
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """One image: what is wanted, and what is there of it.

    ``name`` is ``base``, ``registry`` or the image folder, ``reference`` its tag (empty while the base is missing, on
    which it depends). ``state`` is None when it is not on the engine. ``is_wanted`` is False for one of an earlier
    content, ``is_foreign`` True for one that comes from a registry. ``own_bytes`` is its size on top of the base.
    """

    name: str
    reference: str
    state: ImageState | None
    own_bytes: int | None
    is_wanted: bool = True
    is_foreign: bool = False


@contextmanager
def connected() -> Iterator[DockerEngine]:
    """A connection to the engine, closed at the end."""
    with closing(DockerEngine.connect(os.environ)) as engine:
        yield engine


def wanted_contexts(config: Mapping[str, Any] | None, search_dirs: Sequence[str] = ()) -> dict[str, BuildContext]:
    """Name -> what is built: of the servers of a config, or of every image folder; the registry's always."""
    files = images.image_files(install_root(), os.environ)
    roots = search_roots(search_dirs)
    folders = {REGISTRY: install_root() / "images" / REGISTRY}
    if config is None:
        for root in reversed(roots):  # the first root that has a folder wins
            found = sorted(path for path in (root / "images").glob("*/*") if _is_image_folder(path))
            folders |= {"/".join(path.parts[-2:]): path for path in found}
    else:
        for server in parse_server_instances(config):
            if find_wanted_image(server) is None and not is_left_out(server, roots):
                key = f"{server.server_type}/{server.implementation}"
                folders[key] = find_image_folder(server.server_type, server.implementation, roots)
    contexts = {}
    for name, folder in folders.items():
        repository = "nemo-gym/registry" if name == REGISTRY else repository_name(*name.split("/"))
        contexts[name] = load_server_context(folder, repository, files.server_dockerfile, files.ca_bundle)
    return contexts


def foreign_images(config: Mapping[str, Any] | None) -> list[WantedImage]:
    """The images that servers of a config take from a registry."""
    servers = [] if config is None else parse_server_instances(config)
    return [image for image in map(find_wanted_image, servers) if image is not None]


def build(
    engine: ContainerEngine, contexts: Mapping[str, BuildContext], foreign: Sequence[WantedImage] = ()
) -> list[ImageEntry]:
    """Pull and build what is missing, and say what is there then."""
    files = images.image_files(install_root(), os.environ)
    python_image, wanted = images.python_image_of(os.environ), list(contexts.values())
    log_notices(wanted)
    missing = images.count_missing(engine, files, wanted, python_image)
    python = images.find_missing_python(engine, python_image)
    to_pull = check_before_work(engine, foreign, builds=missing, python=python, environ=os.environ)
    pull_images(engine, to_pull, platforms=named_platforms(foreign))
    images.ensure_images(engine, files, wanted, python_image=python_image)
    return entries(engine, contexts, foreign)


def base_context() -> BuildContext:
    """What the base image is built from."""
    files = images.image_files(install_root(), os.environ)
    return load_base_context(files.package, files.base_dockerfile, files.base_requirements, files.ca_bundle)


def entries(
    engine: ContainerEngine, contexts: Mapping[str, BuildContext], foreign: Sequence[WantedImage] = ()
) -> list[ImageEntry]:
    """The base image and each wanted one, on the engine or not. Builds and pulls nothing."""
    context = base_context()
    python = images.find_python(engine, images.python_image_of(os.environ))
    base_tag = "" if python is None else images.tag_of(context, python[1])
    base = engine.find_image(base_tag) if base_tag else None
    found = [ImageEntry(BASE, base_tag, base, None)]
    for name, wanted in contexts.items():
        tag = "" if base is None else images.tag_of(wanted, base.id)
        state = engine.find_image(tag) if tag else None
        found.append(ImageEntry(name, tag, state, None if state is None else state.own_bytes(base)))
    for reference in dict.fromkeys(str(image.reference) for image in foreign):
        state = engine.find_image(reference)
        found.append(ImageEntry(reference, reference, state, None, is_foreign=True))
    return found


def superseded(engine: ContainerEngine, wanted: Sequence[ImageEntry]) -> list[ImageEntry]:
    """Every name of the images built here that are not among the wanted, the newest image first.

    An image is one built here when it carries our labels and a name of ours: one that was pulled has other names.
    """
    keep = {entry.state.id for entry in wanted if entry.state is not None}
    ours = engine.list_images(LABEL_CONTEXT)
    by_id = {state.id: state for state in ours}
    return [
        ImageEntry(
            state.labels.get(LABEL_REPOSITORY, reference.rpartition(":")[0]).removeprefix("nemo-gym/"),
            reference,
            state,
            state.own_bytes(by_id.get(state.labels.get(LABEL_BASE_IMAGE, ""))),
            is_wanted=False,
        )
        for state in sorted(ours, key=lambda state: state.created, reverse=True)
        if state.id not in keep and any(reference.startswith(_OWN_NAMES) for reference in state.references)
        for reference in (*state.references, *state.repo_digests)  # as long as one is there the image stays
    ]


def count_stages(engine: ContainerEngine) -> int:
    """How many stages of builds the engine keeps as the build cache."""
    return len(engine.find_dangling_images(LABEL_BUILD_STAGE))


def prune(engine: ContainerEngine, old: Sequence[ImageEntry]) -> tuple[list[ImageEntry], list[ImageEntry]]:
    """Remove tags, and the build cache; those removed, and those that a container or another image still uses."""
    removed, used = [], []
    for entry in old:  # servers before the bases they stand on: bases are older
        try:
            engine.remove_image(entry.reference)
        except EngineError as error:
            if error.status != 409:
                raise
            logger.info("%s is in use and stays", entry.reference)
            used.append(entry)
            continue
        removed.append(entry)
    engine.remove_dangling_images(LABEL_BUILD_STAGE, older_than_hours=0)
    log_folder = images.image_files(install_root(), os.environ).log_folder
    for entry in removed:
        log_file(log_folder, entry.reference).unlink(missing_ok=True)
    return removed, used


def check_prefix(prefix: str) -> str:
    """A registry, and a path in it, to push to: ``host[:port][/path]``. Raises ``ConfigError`` for anything else."""
    stripped = prefix.strip("/")
    if not _PREFIX.fullmatch(stripped):
        raise ConfigError(
            f"{prefix!r} is no place to push images to. Needed: HOST[:PORT][/PATH] in lower case, as in "
            "registry.example.com/team."
        )
    return stripped


def push(engine: ContainerEngine, present: Sequence[ImageEntry], prefix: str) -> dict[str, str]:
    """Push what was built here below ``prefix``; name -> the reference by digest that serves it elsewhere."""
    prefix = check_prefix(prefix)
    with _Pushes(engine, prefix) as pushes:
        return pushes.run([entry for entry in present if not entry.is_foreign])


class _Pushes:
    """Pushes under way. Leaving by an exception ends them, where they would go on to their end."""

    def __init__(self, engine: ContainerEngine, prefix: str) -> None:
        self._engine = engine
        self._prefix = prefix
        self._pool = ThreadPoolExecutor(_PARALLEL_PUSHES, thread_name_prefix="nemo-gym-push")
        self._lock = threading.Lock()
        self._given_up = False
        self._logs: list[LogStream] = []

    def __enter__(self) -> _Pushes:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._given_up = True
        for log in self._logs:
            log.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, own: Sequence[ImageEntry]) -> dict[str, str]:
        pushed = [(entry.name, self._pool.submit(self._push, entry)) for entry in own]
        return {name: reference.result() for name, reference in pushed}

    def _push(self, entry: ImageEntry) -> str:
        if entry.state is None:
            raise EngineNotFoundError(f"The image {entry.name} is not on the engine: `gym images build` builds it.")
        target = f"{self._prefix}/{entry.reference}"
        self._engine.tag_image(entry.state.id, target)
        logger.info("pushing %s", target)
        digest: re.Match[str] | None = None
        with closing(self._engine.push_image(target)) as log:
            with self._lock:
                if self._given_up:
                    raise ImageError(f"pushing {target} was given up")
                self._logs.append(log)
            for text in log:
                logger.debug("%s: %s", entry.name, text.rstrip())
                digest = _PUSHED.search(text) or digest
        if digest is None:
            raise ImageError(f"{target} was pushed, and the registry did not say under which digest.")
        return f"{target.rpartition(':')[0]}@{digest[1]}"


def _is_image_folder(path: Path) -> bool:
    return (path / "app.py").is_file() or (path / "Dockerfile").is_file()
