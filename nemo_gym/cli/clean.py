"""``gym clean``: the caches of this machine and its engine, named and removed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.cli.arguments import Command, add_output_options
from nemo_gym.cli.output import configure_logging, emit, emit_json, emit_table, is_terminal, note
from nemo_gym.errors import ConfigError, EngineUnavailableError

if TYPE_CHECKING:
    from nemo_gym.deployment.image_commands import ImageEntry
    from nemo_gym.environment.caches import Cache

_MB = 1e6


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    parser.add_argument("-y", "--yes", action="store_true", help="remove it without asking")
    parser.add_argument(
        "--cache-dir",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a further cache directory, the cache_dir of a config; may be repeated",
    )
    parser.add_argument("--keep-images", action="store_true", help="leave the engine alone")
    add_output_options(parser)


def _clean(arguments: argparse.Namespace) -> int:
    from nemo_gym.environment.caches import find_caches, remove_cache

    configure_logging(arguments.verbose)
    caches = find_caches(os.environ, arguments.cache_dir)
    images, stages = ([], 0) if arguments.keep_images else _find_images()
    if arguments.dry_run or not (caches or images or stages):
        _show(caches, images, stages, arguments, removed=False)
        return 0
    if not arguments.yes:
        _show(caches, images, stages, argparse.Namespace(json=False), removed=False)
        if not _confirmed():
            note("Nothing was removed.")
            return 0
    used = _remove_images(images) if images or stages else []  # first: their build logs are among the caches
    busy = [cache for cache in caches if not remove_cache(cache)]
    removed = [entry for entry in images if entry not in used]
    _show([cache for cache in caches if cache not in busy], removed, stages, arguments, removed=True)
    for cache in busy:
        note(f"{cache.path} stays: a process is busy in it. Try again when it has ended.")
    for entry in used:
        note(f"{entry.reference} stays: a container uses it.")
    return 0


def _find_images() -> tuple[list[ImageEntry], int]:
    """The images built here, whatever they are made from, and how many stages the build cache has."""
    from nemo_gym.deployment import image_commands

    try:
        with image_commands.connected() as engine:
            return image_commands.superseded(engine, []), image_commands.count_stages(engine)
    except EngineUnavailableError as error:
        note(f"Images are left out: {str(error).splitlines()[0]}")
        return [], 0


def _remove_images(images: Sequence[ImageEntry]) -> list[ImageEntry]:
    from nemo_gym.deployment import image_commands

    with image_commands.connected() as engine:
        _, used = image_commands.prune(engine, images)
    return used


def _confirmed() -> bool:
    if not is_terminal(sys.stdin):
        raise ConfigError("Removing this needs a yes, and nobody is there to ask. Type `gym clean --yes`.")
    note("Remove all of this? It is made or fetched again when it is needed. [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(
    caches: Sequence[Cache],
    images: Sequence[ImageEntry],
    stages: int,
    arguments: argparse.Namespace,
    *,
    removed: bool,
) -> None:
    if arguments.json:
        emit_json(
            {
                "caches": [{"path": str(c.path), "holds": c.holds, "size_bytes": c.size_bytes} for c in caches],
                "images": [entry.reference for entry in images],
                "build_stages": stages,
                "removed": removed,
            }
        )
        return
    rows = [[str(cache.path), cache.holds, f"{cache.size_bytes / _MB:.1f}"] for cache in caches]
    for entry in images:  # layers that images share count once for each
        own = entry.own_bytes if entry.own_bytes is not None else entry.state.size_bytes if entry.state else 0
        rows.append([entry.reference, "image", f"{own / _MB:.1f}"])
    if stages:
        rows.append([f"{stages} stages of image builds", "build cache", ""])
    if rows:
        emit_table(["removed" if removed else "what", "holds", "MB"], rows)
    else:
        emit("There is nothing to remove.")


COMMAND = Command(
    "clean",
    "name and remove caches: downloads, prepared data, images built here",
    _add_arguments,
    _clean,
    description=(
        "Show what this package keeps on this machine and its engine to be faster the next time, ask, and remove it:\n"
        "downloads, the data of installed benchmarks, what prepare scripts installed, images that were built here,\n"
        "and the build cache. Never results, running sessions and the images they use, or the data in a checkout."
    ),
    takes_overrides=False,
)
