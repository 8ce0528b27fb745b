"""Images of a session, and their lock file: recorded beside the results, and held to with ``--locked``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from nemo_gym.config.sources import install_root
from nemo_gym.containers.builds import LABEL_BASE_IMAGE
from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.containers.image_lock import ImageLock, LockedImage, locked_image
from nemo_gym.containers.images import image_files
from nemo_gym.containers.sbom import installed_packages
from nemo_gym.deployment.image_commands import BASE, base_context, wanted_contexts
from nemo_gym.deployment.server_images import ensure_server_images
from nemo_gym.deployment.topology import REGISTRY, Topology
from nemo_gym.errors import EngineNotFoundError

PYTHON = "python"
_PARALLEL_LOOKS = 3


def ensure_locked_images(
    engine: ContainerEngine, topology: Topology, search_dirs: Sequence[str], lock: ImageLock | None
) -> dict[str, str]:
    """As ``ensure_server_images``; with a lock, ``ConfigError`` before any build when something is not as locked."""
    if lock is not None:
        check_contexts(lock, topology, search_dirs)
    found = ensure_server_images(engine, topology, search_dirs)
    if lock is not None:
        lock.refuse(lock.differing_images(_look(engine, named(topology, found), with_packages=False)))
    return found


def check_contexts(lock: ImageLock, topology: Topology, search_dirs: Sequence[str]) -> None:
    """Refuse what would be built from other files than the locked ones, the base image included."""
    contexts = {BASE: base_context(), **wanted_contexts(topology.config, search_dirs)}
    lock.refuse(lock.differing_contexts({name: context.digest() for name, context in contexts.items()}))


def named(topology: Topology, images: Mapping[str, str]) -> dict[str, str]:
    """Each image once, by the name that a lock file has it under, of images by server name."""
    found = {REGISTRY: images[REGISTRY]}
    for server in topology.servers:
        name = "/".join(server.image_key) if server.image is None else str(server.image.reference)
        found[name] = images[server.name]
    return found


def lock_images(engine: ContainerEngine, references: Mapping[str, str]) -> ImageLock:
    """What the images are, those that they stand on and what is installed in them included."""
    return ImageLock(tuple(_look(engine, references, with_packages=True)))


def _look(engine: ContainerEngine, references: Mapping[str, str], *, with_packages: bool) -> list[LockedImage]:
    cache = image_files(install_root(), os.environ).installed_folder

    def look(name: str, reference: str) -> tuple[LockedImage, str]:
        state = engine.find_image(reference)
        if state is None:
            raise EngineNotFoundError(f"The image {reference} was there a moment ago and is gone. Try again.")
        packages = installed_packages(engine, state.id, cache) if with_packages else None
        by_id = sorted(state.references, key=lambda tag: not tag.startswith("nemo-gym/")) or [reference]
        shown = by_id[0] if reference == state.id else reference
        return locked_image(name, shown, state, packages), state.labels.get(LABEL_BASE_IMAGE, "")

    with ThreadPoolExecutor(_PARALLEL_LOOKS, thread_name_prefix="nemo-gym-images") as pool:
        looked = list(pool.map(look, references.keys(), references.values()))
    found = [image for image, _ in looked]
    below = next((base for image, base in looked if image.is_built and base), "")
    for name in (BASE, PYTHON):
        if not below or engine.find_image(below) is None:
            break
        image, below = look(name, below)
        found.append(image)
    return found
