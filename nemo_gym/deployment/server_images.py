"""Which image each server of a topology runs from.

Built from the server's folder in the search roots where it is missing, or pulled where the config names a reference.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from nemo_gym.config.config_types import ServerInstance
from nemo_gym.config.sources import install_root, search_roots
from nemo_gym.containers import images
from nemo_gym.containers.build_context import BuildContext, load_server_context, repository_name
from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.containers.preflight import check_before_work, named_platforms
from nemo_gym.containers.pulls import pull_images
from nemo_gym.deployment.image_settings import pull_stall_timeout_s
from nemo_gym.deployment.settings import build_timeout_s
from nemo_gym.deployment.topology import REGISTRY, Topology, images_needed
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)


def ensure_server_images(engine: ContainerEngine, topology: Topology, search_dirs: Sequence[str]) -> dict[str, str]:
    """Server name -> image, the registry's among them; whatever is missing is pulled or built.

    Raises ``ConfigError`` when a server has no image folder, and for everything together that stands in the way of
    the work; ``ImageError`` when a build or pull fails.
    """
    stall_timeout_s = pull_stall_timeout_s(topology.config)
    files = images.image_files(install_root(), os.environ)
    files = dataclasses.replace(files, build_timeout_s=build_timeout_s(topology.config))
    roots = search_roots(search_dirs)
    contexts = {REGISTRY: _context(install_root() / "images" / REGISTRY, "nemo-gym/registry", files)}
    for server_type, implementation in images_needed(topology):
        folder = find_image_folder(server_type, implementation, roots)
        repository = repository_name(server_type, implementation)
        contexts[f"{server_type}/{implementation}"] = _context(folder, repository, files)
    log_notices(contexts.values())
    python_image = images.python_image_of(os.environ)
    wanted = {server.name: server.image for server in topology.servers if server.image is not None}
    builds = images.count_missing(engine, files, list(contexts.values()), python_image)
    python = images.find_missing_python(engine, python_image)
    to_pull = check_before_work(engine, list(wanted.values()), builds=builds, python=python, environ=os.environ)
    pull_images(engine, to_pull, stall_timeout_s=stall_timeout_s, platforms=named_platforms(wanted.values()))
    tags = images.ensure_images(engine, files, list(contexts.values()), python_image=python_image)
    by_key = dict(zip(contexts, tags, strict=True))
    return {
        REGISTRY: by_key[REGISTRY],
        **{server.name: by_key["/".join(server.image_key)] for server in topology.servers if server.image is None},
        **{name: str(image.reference) for name, image in wanted.items()},
    }


def find_image_folder(server_type: str, implementation: str, roots: Sequence[Path]) -> Path:
    """``images/<server type>/<implementation>`` in the first search root that has it, else ``ConfigError``."""
    folder = _find_folder(server_type, implementation, roots)
    if folder is not None:
        return folder
    known = sorted({path.name for root in roots for path in (root / "images" / server_type).glob("*") if path.is_dir()})
    nearest = difflib.get_close_matches(implementation, known, n=3)
    hint = " Did you mean " + " or ".join(map(repr, nearest)) + "?" if nearest else ""
    if known and not nearest:
        hint = f" Known ones: {', '.join(known)}."
    raise ConfigError(
        f"No image folder images/{server_type}/{implementation} for that server in {', '.join(map(str, roots))}.{hint}"
    )


def is_left_out(instance: ServerInstance, roots: Sequence[Path]) -> bool:
    """Whether there is nothing to serve it from, and no need to.

    An environment server relays what its agent does, and each row still goes to that agent.
    """
    if instance.server_type != "environment_servers" or instance.settings.get("image") is not None:
        return False
    return _find_folder(instance.server_type, instance.implementation, roots) is None


def log_notices(contexts: Iterable[BuildContext]) -> None:
    """Tell each thing that whoever builds these should know, once."""
    for notice in dict.fromkeys(notice for context in contexts for notice in context.notices):
        logger.warning("%s", notice)


def _find_folder(server_type: str, implementation: str, roots: Sequence[Path]) -> Path | None:
    folders = (root / "images" / server_type / implementation for root in roots)
    return next((folder for folder in folders if folder.is_dir()), None)


def _context(folder: Path, repository: str, files: images.ImageFiles) -> BuildContext:
    return load_server_context(folder, repository, files.server_dockerfile, files.ca_bundle)
