"""Images present, built or pulled: content-addressed tags, one build per tag across threads and processes.

A tag holds the hash of the build context and the ID of the image it stands on, so a present tag needs no look
at anything else, and whatever changes gives a new tag.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.containers.build_context import BuildContext, load_base_context
from nemo_gym.containers.build_network import find_build_network
from nemo_gym.containers.builds import BUILD_TIMEOUT_S, Build, Builds
from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.containers.preflight import WantedImage
from nemo_gym.containers.pulls import pull_images
from nemo_gym.containers.references import parse_reference
from nemo_gym.errors import ConfigError, ImageError

PYTHON_IMAGE = "python:3.13-slim-trixie"
LOCAL_PYTHON_IMAGE = "nemo-gym/python:3.13-slim-trixie"
"""What ``scripts/base-image`` makes from Debian's packages where no image registry answers."""

_PYTHON_ADVICE = (
    "Where no image registry can be reached, `scripts/base-image` in a checkout makes an equivalent from Debian's "
    "packages; or name an image of your own in NEMO_GYM_PYTHON_IMAGE."
)


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Where the files that images are built from stand, and the CA bundle for downloads during a build."""

    package: Path
    base_dockerfile: Path
    base_requirements: Path
    server_dockerfile: Path
    ca_bundle: bytes
    lock_folder: Path
    build_timeout_s: float = BUILD_TIMEOUT_S

    @property
    def log_folder(self) -> Path:
        """Where the whole log of each build is kept."""
        return self.lock_folder.with_name("build-logs")

    @property
    def installed_folder(self) -> Path:
        """Where it is kept what is installed in an image, by its ID."""
        return self.lock_folder.with_name("installed")


def find_ca_bundle(environ: Mapping[str, str]) -> bytes:
    """The certificate authorities this process's environment names, for downloads in builds; empty for none.

    Raises ``ConfigError`` when ``NEMO_GYM_CA_BUNDLE`` names no file.
    """
    for variable in (
        "NEMO_GYM_CA_BUNDLE",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "PIP_CERT",
    ):
        named = environ.get(variable)
        if named and Path(named).is_file():
            return Path(named).read_bytes()
        if named and variable == "NEMO_GYM_CA_BUNDLE":  # the others are not ours to complain of
            raise ConfigError(f"{variable} must name a file of certificates, and there is none at {named}.")
    return b""


def ensure_images(
    engine: ContainerEngine,
    files: ImageFiles,
    contexts: Sequence[BuildContext],
    *,
    python_image: str | None = None,
) -> list[str]:
    """Every context's image tag, in order; what is missing is built.

    Raises ``ImageError`` with the end of the log. The first failure, and a Ctrl-C, ends the builds under way.
    """
    base_tag, python = ensure_base(engine, files, python_image)
    base_id = _get_image_id(engine, base_tag)
    tags = [tag_of(context, base_id) for context in contexts]
    wanted = dict(zip(tags, contexts, strict=True))
    missing = {tag: context for tag, context in wanted.items() if engine.find_image_id(tag) is None}
    if missing:
        arguments = {"BASE_IMAGE": base_tag, "PYTHON_IMAGE": python}
        _build(engine, files, [Build(context, tag, arguments, base_id) for tag, context in missing.items()])
    return tags


def ensure_base(engine: ContainerEngine, files: ImageFiles, python_image: str | None = None) -> tuple[str, str]:
    """The base image's tag, built where it is missing, and the Python image it stands on."""
    python = _ensure_python(engine, python_image)
    context = load_base_context(files.package, files.base_dockerfile, files.base_requirements, files.ca_bundle)
    python_id = _get_image_id(engine, python)
    tag = tag_of(context, python_id)
    if engine.find_image_id(tag) is None:
        _build(engine, files, [Build(context, tag, {"PYTHON_IMAGE": python}, python_id)])
    return tag, python


def count_missing(
    engine: ContainerEngine, files: ImageFiles, contexts: Sequence[BuildContext], python_image: str | None = None
) -> int:
    """How many images ``ensure_images`` would build, the base image among them. Builds nothing."""
    python = find_python(engine, python_image)
    base = load_base_context(files.package, files.base_dockerfile, files.base_requirements, files.ca_bundle)
    base_id = None if python is None else engine.find_image_id(tag_of(base, python[1]))
    if base_id is None:
        return len(contexts) + 1
    return sum(engine.find_image_id(tag) is None for tag in {tag_of(context, base_id) for context in contexts})


def _build(engine: ContainerEngine, files: ImageFiles, builds: Sequence[Build]) -> None:
    network = find_build_network(os.environ)
    with Builds(engine, files.lock_folder, files.log_folder, network, files.build_timeout_s) as under_way:
        under_way.run(builds)


def tag_of(context: BuildContext, base_id: str) -> str:
    """``repository:<12 digits of the context's hash>-<12 of the base image's ID>``."""
    return f"{context.repository}:{context.digest()[:12]}-{base_id.removeprefix('sha256:')[:12]}"


def find_python(engine: ContainerEngine, python_image: str | None = None) -> tuple[str, str] | None:
    """The reference and ID of the Python image that a build would use, None when it is not on the engine."""
    for reference in [python_image] if python_image else [PYTHON_IMAGE, LOCAL_PYTHON_IMAGE]:
        found = engine.find_image_id(reference)
        if found is not None:
            return reference, found
    return None


def find_missing_python(engine: ContainerEngine, python_image: str | None = None) -> WantedImage | None:
    """The Python image that a build would have to pull first; None when one is there.

    Raises ``ConfigError`` for a name that is none.
    """
    if find_python(engine, python_image) is not None:
        return None
    try:
        reference = parse_reference(python_image or PYTHON_IMAGE)
    except ConfigError as error:
        raise ConfigError(f"NEMO_GYM_PYTHON_IMAGE: {error}") from error
    return WantedImage(reference, "missing", "Python, which every server image stands on,", advice=_PYTHON_ADVICE)


def _ensure_python(engine: ContainerEngine, python_image: str | None) -> str:
    wanted = [python_image] if python_image else [PYTHON_IMAGE, LOCAL_PYTHON_IMAGE]
    for reference in wanted:
        if engine.find_image_id(reference) is not None:
            return reference
    try:
        pull_images(engine, [parse_reference(wanted[0])])
    except ImageError as error:
        raise ImageError(
            f"The Python image {wanted[0]}, which every server image stands on, is not on the engine and cannot be "
            f"pulled: {error}\n{_PYTHON_ADVICE}",
            log_tail=error.log_tail,
        ) from error
    return wanted[0]


def _get_image_id(engine: ContainerEngine, reference: str) -> str:
    found = engine.find_image_id(reference)
    if found is None:
        raise ImageError(f"The image {reference} was there a moment ago and is gone. Try again.")
    return found


def image_files(install_root: Path, environ: Mapping[str, str]) -> ImageFiles:
    """Where everything is, given the install root (a checkout, or the data inside an installed package)."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo-gym"
    return ImageFiles(
        package=Path(__file__).resolve().parents[1],
        base_dockerfile=install_root / "Dockerfile",
        base_requirements=install_root / "images" / "requirements.txt",
        server_dockerfile=install_root / "images" / "Dockerfile",
        ca_bundle=find_ca_bundle(environ),
        lock_folder=cache / "locks",
    )


def python_image_of(environ: Mapping[str, str]) -> str | None:
    """The user's own choice of Python image, ``NEMO_GYM_PYTHON_IMAGE``, if any."""
    return environ.get("NEMO_GYM_PYTHON_IMAGE") or None
