"""What is installed in an image: asked of the image itself, once for each image ID.

Nothing is added to images for it. The answer is kept in the cache folder: what an ID names never changes.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.containers.labels import Owner, new_session_id, session_labels
from nemo_gym.errors import EngineError, EngineUnavailableError

logger = logging.getLogger(__name__)

_LIST = (
    "import importlib.metadata as m, json, platform;"
    "found = {d.name: d.version for d in m.distributions()};"
    "print(json.dumps({'python': platform.python_version(), **dict(sorted(found.items()))}))"
)


def installed_packages(engine: ContainerEngine, image_id: str, cache_folder: Path) -> Mapping[str, str] | None:
    """Each Python distribution of an image with its version, and Python's own; None when it has no Python to ask."""
    file = cache_folder / f"{image_id.removeprefix('sha256:')}.json"
    kept = _read(file)
    if kept is not None:
        return kept
    # labelled as a session's, so that a sweep removes it should this process be killed meanwhile
    labels = session_labels(new_session_id(), Owner.current())
    try:
        found = _parse(engine.run_once(image_id, ["python3", "-c", _LIST], labels))
    except EngineUnavailableError:
        raise
    except (EngineError, ValueError) as error:
        logger.debug("what is installed in %s is not known: %s", image_id, error)
        return None
    _write(file, found)
    return found


def _parse(text: str) -> dict[str, str]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"not an object: {text[:100]}")
    return {str(name): str(version) for name, version in found.items()}


def _read(file: Path) -> dict[str, str] | None:
    try:
        return _parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(file: Path, found: Mapping[str, str]) -> None:
    partial = file.with_suffix(f".{new_session_id()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(file)
    except OSError as error:  # it is asked for anew the next time
        logger.debug("%s cannot be written: %s", file, error)
        with contextlib.suppress(OSError):
            partial.unlink()
