"""The lock file of images: what each was made from and holds, and what a locked run refuses.

Pure but for ``read_lock``.

An image that was built here is told by the hash of its build context: that is the same on every machine, which its
ID is not, since base images differ. One that came from a registry is told by its ID and its repository digests too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nemo_gym.containers.builds import LABEL_CONTEXT
from nemo_gym.containers.engine import ImageState
from nemo_gym.containers.source_labels import REVISION
from nemo_gym.errors import ConfigError

VERSION = 1
_OWN_TAG = re.compile(r"nemo-gym/[^@:]+:[0-9a-f]{12}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class LockedImage:
    """One image. ``name`` is ``registry``, ``base``, ``python``, the image folder, or the reference of a foreign one.

    ``context`` is the hash of the build context, None for an image that was not built here. ``packages`` are the
    Python distributions installed in it, None where that is not known.
    """

    name: str
    reference: str
    context: str | None
    image_id: str
    repo_digests: tuple[str, ...] = ()
    revision: str | None = None
    packages: Mapping[str, str] | None = None

    @property
    def is_built(self) -> bool:
        return self.context is not None


@dataclass(frozen=True, slots=True)
class ImageLock:
    """The images of a run, in the order of their names. ``source`` is the file it was read from, for messages."""

    images: tuple[LockedImage, ...]
    source: str = ""

    def to_json(self) -> str:
        """As the lock file has it."""
        images = {}
        for image in sorted(self.images, key=lambda image: image.name):
            fields = asdict(image)
            del fields["name"]
            images[image.name] = {**fields, "repo_digests": sorted(image.repo_digests)}
        return json.dumps({"version": VERSION, "images": images}, indent=2, ensure_ascii=False) + "\n"

    def digest(self) -> str:
        """The sha256, in hex, of what tells the images: the same on every machine that serves from the same.

        A built image counts by its build context, another by its digests in a registry, else by its ID. What the base
        image was built on counts only where it came from a registry.
        """
        told = {
            image.name: image.context or sorted(image.repo_digests) or image.image_id
            for image in self.images
            if image.name != "python" or image.repo_digests
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def differing_contexts(self, contexts: Mapping[str, str]) -> list[str]:
        """A sentence for each image to be built, by name, whose context is not the locked one."""
        locked = {image.name: image for image in self.images}
        found = []
        for name, context in contexts.items():
            if name not in locked:
                found.append(f"{name} is not in it")
            elif locked[name].context != context:
                was = locked[name].context or "none, it came from a registry"
                found.append(f"{name} is to be built from other files (context hash {context[:12]}, locked {was[:31]})")
        return found

    def differing_images(self, images: Sequence[LockedImage]) -> list[str]:
        """A sentence for each image from a registry that is not the locked one."""
        locked = {image.name: image for image in self.images}
        found = []
        for image in images:
            if image.is_built:
                continue
            held = locked.get(image.name)
            if held is None:
                # which Python image there is differs from machine to machine as long as none came from a registry
                if image.name != "python":
                    found.append(f"{image.name} is not in it")
            elif image.name == "python" and not (image.repo_digests and held.repo_digests):
                continue
            elif image.image_id != held.image_id:
                found.append(f"{image.name} has another image ID ({image.image_id[:19]}, locked {held.image_id[:19]})")
            elif held.repo_digests and image.repo_digests and not set(held.repo_digests) & set(image.repo_digests):
                found.append(
                    f"{image.name} has another digest ({image.repo_digests[0]}, locked {held.repo_digests[0]})"
                )
        return found

    def refuse(self, differences: Sequence[str]) -> None:
        """Raise ``ConfigError`` that names each difference, if there is any."""
        if differences:
            raise ConfigError(
                f"The images are not those of the lock file {self.source}: {'; '.join(differences)}.\nCheck out the "
                "source that the lock file was made from (`revision` in it says which), or make a new one with `gym "
                "images lock`."
            )


def locked_image(name: str, reference: str, state: ImageState, packages: Mapping[str, str] | None) -> LockedImage:
    """What the lock file says of an image that is there."""
    is_built = _OWN_TAG.fullmatch(reference) is not None
    return LockedImage(
        name=name,
        reference=reference,
        context=state.labels.get(LABEL_CONTEXT) if is_built else None,
        image_id=state.id,
        repo_digests=state.repo_digests,
        revision=state.labels.get(REVISION),
        packages=packages,
    )


def parse_lock(text: str, source: str) -> ImageLock:
    """A lock file's content. Raises ``ConfigError`` when it is none."""
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise ConfigError(
                f"The lock file {source} has version {document['version']!r}; this release reads version {VERSION}. "
                "Make a new one with `gym images lock`."
            )
        images = tuple(_parse_image(name, entry) for name, entry in document["images"].items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{source} is no lock file of images ({type(error).__name__}: {error}). `gym images lock` makes one."
        ) from error
    return ImageLock(images, source)


def read_lock(path: Path) -> ImageLock:
    """Raises ``ConfigError`` when there is no such file, or it is no lock file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The lock file {path} cannot be read: {error}. `gym images lock --output {path}` makes one."
        ) from error
    return parse_lock(text, str(path))


def _parse_image(name: str, entry: Mapping[str, Any]) -> LockedImage:
    image = LockedImage(name=name, **entry)
    if not isinstance(image.image_id, str) or not isinstance(image.context, str | None):
        raise TypeError(f"{name} has no image_id, or a context that is no text")
    return replace(image, repo_digests=tuple(image.repo_digests))
