"""Images present, built or pulled: content-addressed tags, one build per tag across threads and processes.

A tag holds the hash of the build context and the ID of the image it stands on, so a present tag needs no look
at anything else, and whatever changes gives a new tag.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from tenacity import RetryCallState, Retrying, retry_if_exception_type

from nemo_gym.containers.build_context import BuildContext, load_base_context
from nemo_gym.containers.engine import ContainerEngine, LogStream
from nemo_gym.errors import ConfigError, ImageError

logger = logging.getLogger(__name__)

PYTHON_IMAGE = "python:3.13-slim-trixie"
LOCAL_PYTHON_IMAGE = "nemo-gym/python:3.13-slim-trixie"
"""What ``scripts/base-image`` makes from Debian's packages where no image registry answers."""

LABEL_CONTEXT = "nemo-gym.context"
LABEL_BUILD_STAGE = "nemo-gym.stage=build"

_PARALLEL_BUILDS = 3
_LOCK_WAIT_S = 0.5
_LOCK_PATIENCE = 4


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Where the files that images are built from stand, and the CA bundle for downloads during a build."""

    package: Path
    base_dockerfile: Path
    base_requirements: Path
    server_dockerfile: Path
    ca_bundle: bytes
    lock_folder: Path


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
        with _Builds(engine, files.lock_folder) as builds:
            builds.run([(context, tag, arguments) for tag, context in missing.items()])
        engine.remove_dangling_images(LABEL_BUILD_STAGE)
    return tags


def ensure_base(engine: ContainerEngine, files: ImageFiles, python_image: str | None = None) -> tuple[str, str]:
    """The base image's tag, built where it is missing, and the Python image it stands on."""
    python = _ensure_python(engine, python_image)
    context = load_base_context(files.package, files.base_dockerfile, files.base_requirements, files.ca_bundle)
    tag = tag_of(context, _get_image_id(engine, python))
    if engine.find_image_id(tag) is None:
        with _Builds(engine, files.lock_folder) as builds:
            builds.run([(context, tag, {"PYTHON_IMAGE": python})])
        engine.remove_dangling_images(LABEL_BUILD_STAGE)
    return tag, python


def tag_of(context: BuildContext, base_id: str) -> str:
    """``repository:<12 digits of the context's hash>-<12 of the base image's ID>``."""
    return f"{context.repository}:{context.digest()[:12]}-{base_id.removeprefix('sha256:')[:12]}"


def _ensure_python(engine: ContainerEngine, python_image: str | None) -> str:
    wanted = [python_image] if python_image else [PYTHON_IMAGE, LOCAL_PYTHON_IMAGE]
    for reference in wanted:
        if engine.find_image_id(reference) is not None:
            return reference
    logger.info("pulling %s", wanted[0])
    try:
        with contextlib.closing(engine.pull_image(wanted[0])) as log:
            for text in log:
                logger.debug("%s", text.rstrip())
    except ImageError as error:
        raise ImageError(
            f"The Python image {wanted[0]}, which every server image stands on, is not on the engine and cannot be "
            f"pulled: {error}\nWhere no image registry can be reached, `scripts/base-image` in a checkout makes an "
            "equivalent from Debian's packages; or name an image of your own in NEMO_GYM_PYTHON_IMAGE.",
            log_tail=error.log_tail,
        ) from error
    return wanted[0]


def _get_image_id(engine: ContainerEngine, reference: str) -> str:
    found = engine.find_image_id(reference)
    if found is None:
        raise ImageError(f"The image {reference} was there a moment ago and is gone. Try again.")
    return found


class _Builds:
    """Builds under way. Leaving by an exception ends them: each is broken off on the engine as well."""

    def __init__(self, engine: ContainerEngine, lock_folder: Path) -> None:
        self._engine = engine
        self._lock_folder = lock_folder
        self._pool = ThreadPoolExecutor(_PARALLEL_BUILDS, thread_name_prefix="nemo-gym-build")
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._logs: list[LogStream] = []

    def __enter__(self) -> _Builds:
        return self

    def __exit__(self, *error: object) -> None:
        self._give_up()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, builds: Sequence[tuple[BuildContext, str, Mapping[str, str]]]) -> None:
        """Build each (context, tag, build arguments); raises the first error as soon as it is there."""
        for done in as_completed([self._pool.submit(self._build, *build) for build in builds]):
            done.result()

    def _give_up(self) -> None:
        with self._lock:
            self._given_up.set()
            logs, self._logs = self._logs, []
        for log in logs:
            log.close()

    def _build(self, context: BuildContext, tag: str, arguments: Mapping[str, str]) -> None:
        with self._only_builder(tag):
            if self._engine.find_image_id(tag) is not None:  # another process built it while this one waited
                return
            logger.info("building %s", tag)
            started = time.monotonic()
            labels = {LABEL_CONTEXT: context.digest()}
            log = self._engine.build_image(context.to_tar(), tag=tag, build_args=arguments, labels=labels)
            with contextlib.closing(log):
                with self._lock:
                    self._check_given_up(tag)
                    self._logs.append(log)
                for text in log:
                    if text.strip():
                        logger.debug("%s: %s", context.repository, text.rstrip())
            logger.info("built %s in %.1f s", tag, time.monotonic() - started)

    @contextlib.contextmanager
    def _only_builder(self, tag: str) -> Iterator[None]:
        """Hold the lock of a tag; says so when another process holds it, and goes on waiting."""
        lock = FileLock(self._lock_folder / f"{tag.replace('/', '_').replace(':', '_')}.lock")

        def say_once(state: RetryCallState) -> None:
            if state.attempt_number == _LOCK_PATIENCE:
                logger.info("another process builds %s: waiting for it", tag)

        retrying = Retrying(
            retry=retry_if_exception_type(Timeout), before=lambda _: self._check_given_up(tag), after=say_once
        )
        try:
            self._lock_folder.mkdir(parents=True, exist_ok=True)
            retrying(lock.acquire, timeout=_LOCK_WAIT_S)
        except OSError as error:
            raise ConfigError(
                f"The folder {self._lock_folder} for build locks cannot be written to ({error}). "
                "Set XDG_CACHE_HOME to a folder that can be, or change its owner."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _check_given_up(self, tag: str) -> None:
        if self._given_up.is_set():
            raise ImageError(f"building {tag} was given up")


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
