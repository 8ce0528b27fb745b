"""``gym images``: built ahead, listed, pushed, locked, pruned."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import Command, ConfigRequest, add_config_options, add_output_options, add_search_option
from nemo_gym.cli.image_progress import show_image_progress
from nemo_gym.cli.output import configure_logging, emit, emit_exactly, emit_json, emit_table, note, write_whole
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.containers.build_context import BuildContext
    from nemo_gym.containers.preflight import WantedImage
    from nemo_gym.deployment.image_commands import ImageEntry

_MB = 1e6


def _add_choice(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    parser.add_argument("--model-type", metavar="TYPE", help="the kind of model server (`gym list models`)")


def _wanted(arguments: argparse.Namespace) -> tuple[dict[str, BuildContext], list[WantedImage]]:
    """What is to be built and pulled: of the benchmark or config that was named, else of every image folder."""
    from nemo_gym.deployment.image_commands import foreign_images, wanted_contexts

    config = _config(arguments)
    return wanted_contexts(config, arguments.search_dir), foreign_images(config)


def _config(arguments: argparse.Namespace) -> dict[str, Any] | None:
    from nemo_gym.config.resolve import load_config, to_plain

    if arguments.benchmark is None and not arguments.config:
        if arguments.overrides or arguments.model_type:
            raise ConfigError("Without --benchmark or --config all images are meant; leave the other options out.")
        return None
    request = ConfigRequest.from_arguments(arguments)
    # endpoints and keys may be left open: images do not depend on them
    config = load_config(request.serving_paths(), request.overrides, search_dirs=request.search_dirs, serving=False)
    return to_plain(config)


# -- build and list ------------------------------------------------------------------------------------------------


def _build(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment import image_commands

    configure_logging(arguments.verbose)
    wanted = _wanted(arguments)
    with image_commands.connected() as engine, show_image_progress():
        built = image_commands.build(engine, *wanted)
    _show(built, arguments)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment import image_commands

    configure_logging(arguments.verbose)
    wanted = _wanted(arguments)
    with image_commands.connected() as engine:
        found = image_commands.entries(engine, *wanted)
        if arguments.benchmark is None and not arguments.config:
            found += image_commands.superseded(engine, found)
    _show(found, arguments)
    return 0


def _show(found: Sequence[ImageEntry], arguments: argparse.Namespace) -> None:
    if arguments.json:
        emit_json([_as_json(entry) for entry in found])
        return
    rows = [[entry.name, entry.reference, _state(entry), _size(entry), _own(entry), _age(entry)] for entry in found]
    emit_table(["image", "tag", "state", "MB", "own MB", "age"], rows)


def _as_json(entry: ImageEntry) -> dict[str, Any]:
    state = entry.state
    return {
        "name": entry.name,
        "reference": entry.reference or None,
        "state": _state(entry),
        "image_id": None if state is None else state.id,
        "repo_digests": [] if state is None else list(state.repo_digests),
        "size_bytes": None if state is None else state.size_bytes,
        "own_bytes": entry.own_bytes,
        "created": None if state is None else state.created,
        "labels": {} if state is None else dict(state.labels),
    }


def _state(entry: ImageEntry) -> str:
    if entry.state is None:
        return "missing"
    return "present" if entry.is_wanted else "superseded"


def _size(entry: ImageEntry) -> str:
    return "" if entry.state is None else f"{entry.state.size_bytes / _MB:.1f}"


def _own(entry: ImageEntry) -> str:
    return "" if entry.own_bytes is None else f"{entry.own_bytes / _MB:.1f}"


def _age(entry: ImageEntry) -> str:
    if entry.state is None or not entry.state.created:
        return ""
    created = datetime.fromisoformat(entry.state.created.partition(".")[0].removesuffix("Z")).replace(tzinfo=UTC)
    minutes = max(0, int(time.time() - created.timestamp()) // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // (24 * 60)} days"


# -- push ----------------------------------------------------------------------------------------------------------


def _add_push_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("to", metavar="HOST[:PORT][/PATH]", help="the registry, and a path in it, to push to")
    _add_choice(parser)


def _push(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment import image_commands

    configure_logging(arguments.verbose)
    prefix = image_commands.check_prefix(arguments.to)
    wanted = _wanted(arguments)
    with image_commands.connected() as engine:
        with show_image_progress():
            built = image_commands.build(engine, *wanted)
        pushed = image_commands.push(engine, built, prefix)
    if arguments.json:
        emit_json(pushed)
    else:
        emit_table(["image", "reference"], [[name, reference] for name, reference in pushed.items()])
        note("A server runs from one of them with `image: {reference: ...}` in its config.")
    return 0


# -- lock ----------------------------------------------------------------------------------------------------------


def _add_lock_arguments(parser: argparse.ArgumentParser) -> None:
    _add_choice(parser)
    parser.add_argument("--output", type=Path, metavar="PATH", help="write the lock file here instead of to stdout")


def _lock(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment import image_commands
    from nemo_gym.deployment.locked_images import lock_images

    configure_logging(arguments.verbose)
    wanted = _wanted(arguments)
    with image_commands.connected() as engine:
        with show_image_progress():
            built = image_commands.build(engine, *wanted)
        references = {entry.name: entry.reference for entry in built if entry.name != image_commands.BASE}
        text = lock_images(engine, references).to_json()
    if arguments.output is None:
        emit_exactly(text)
    else:
        write_whole(arguments.output, text)
        note(f"The lock file is {arguments.output}.")
    return 0


# -- prune ---------------------------------------------------------------------------------------------------------


def _add_prune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    add_search_option(parser)
    add_output_options(parser)


def _prune(arguments: argparse.Namespace) -> int:
    from nemo_gym.deployment import image_commands

    configure_logging(arguments.verbose)
    wanted = image_commands.wanted_contexts(None, arguments.search_dir)
    with image_commands.connected() as engine:
        old = image_commands.superseded(engine, image_commands.entries(engine, wanted))
        removed, used = (old, []) if arguments.dry_run else image_commands.prune(engine, old)
    if arguments.json:
        emit_json({"removed": _references(removed), "in_use": _references(used), "dry_run": arguments.dry_run})
        return 0
    for entry in removed:
        emit(f"{'would remove' if arguments.dry_run else 'removed'} {entry.reference}")
    for entry in used:
        note(f"{entry.reference} is used by a container and stays.")
    if not old:
        note("Nothing to remove: every image of ours is one that an image folder here needs.")
    return 0


def _references(found: Sequence[ImageEntry]) -> list[str]:
    return [entry.reference for entry in found]


_WHICH = "Of the benchmark or config named; of every image folder when none is."

COMMANDS = [
    Command(
        "build",
        "build ahead what serving would build",
        _add_choice,
        _build,
        description=f"Build what is missing. {_WHICH}",
    ),
    Command(
        "list",
        "show the images, there or missing, with sizes and ages",
        _add_choice,
        _list,
        description=(
            f"Show each image's tag, state, size, size on top of the base, and age. {_WHICH}\nIn the latter case also "
            "those of earlier contents, which `gym images prune` removes."
        ),
    ),
    Command(
        "push",
        "push the images to your own registry, to serve from them elsewhere",
        _add_push_arguments,
        _push,
        description=(
            f"Build what is missing, push it with the credentials that `docker login` keeps, and print each\nimage's "
            f"reference by digest. {_WHICH}"
        ),
    ),
    Command(
        "lock",
        "record what the images are made from and what is installed in them",
        _add_lock_arguments,
        _lock,
        description=(
            "Build what is missing, and write each image's context hash, ID, digests, source revision and installed\n"
            f"packages as a lock file for --locked. {_WHICH}"
        ),
    ),
    Command(
        "prune",
        "remove images of earlier contents, and the build cache",
        _add_prune_arguments,
        _prune,
        description=(
            "Remove images that were built here from contents that no image folder here has any more (another\n"
            "checkout's among them), and the build cache. Nothing that does not carry this package's labels, that\n"
            "was pulled, or that a container uses."
        ),
        takes_overrides=False,
    ),
]
