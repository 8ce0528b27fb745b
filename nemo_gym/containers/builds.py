"""Builds under way: one per tag across threads and processes, each with its whole log on disk.

Leaving by an exception ends them all on the engine as well. What a build needs of this host's network (proxies,
package index) is found when there is something to build, so that a start that builds nothing does not look.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout
from tenacity import RetryCallState, Retrying, retry_if_exception_type

from nemo_gym.containers.build_context import BuildContext
from nemo_gym.containers.build_network import BuildNetwork
from nemo_gym.containers.engine import ContainerEngine, LogStream
from nemo_gym.containers.image_progress import Telling, is_observed
from nemo_gym.containers.source_labels import source_labels
from nemo_gym.errors import ConfigError, EngineError, ImageError

logger = logging.getLogger(__name__)

LABEL_CONTEXT = "nemo-gym.context"
LABEL_REPOSITORY = "nemo-gym.repository"
LABEL_BASE_IMAGE = "nemo-gym.base-image"
LABEL_BUILD_STAGE = "nemo-gym.stage"
STAGES_KEPT_HOURS = 7 * 24
"""Build stages are the build cache of the classic builder; older ones go after the next build."""

BUILD_TIMEOUT_S = 3600.0

_PARALLEL_BUILDS = 3
_LOCK_WAIT_S = 0.5
_LOCK_PATIENCE = 4
_PROGRESS_EVERY_S = 3.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")


class Build:
    """One image to build: what from, under which tag, and the image ID that it stands on."""

    def __init__(self, context: BuildContext, tag: str, arguments: Mapping[str, str], base_id: str) -> None:
        self.context = context
        self.tag = tag
        self.arguments = arguments
        self.base_id = base_id

    def labels(self) -> dict[str, str]:
        """What the image says of itself: whose it is, what from and what on."""
        return {
            LABEL_CONTEXT: self.context.digest(),
            LABEL_REPOSITORY: self.context.repository,
            LABEL_BASE_IMAGE: self.base_id,
            **source_labels(self.context.source),
        }


class Builds:
    """Builds under way. Leaving by an exception ends them: each is broken off on the engine as well."""

    def __init__(
        self,
        engine: ContainerEngine,
        lock_folder: Path,
        log_folder: Path,
        network: BuildNetwork,
        timeout_s: float = BUILD_TIMEOUT_S,
    ) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._lock_folder = lock_folder
        self._log_folder = log_folder
        self._network = network
        self._pool = ThreadPoolExecutor(_PARALLEL_BUILDS, thread_name_prefix="nemo-gym-build")
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._logs: list[LogStream] = []
        # stages that saw a password are no build cache: those that are new at the end
        self._stages_before = engine.find_dangling_images(LABEL_BUILD_STAGE) if network.secrets else set[str]()

    def __enter__(self) -> Builds:
        return self

    def __exit__(self, *error: object) -> None:
        self._give_up()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._engine.remove_dangling_images(LABEL_BUILD_STAGE, older_than_hours=STAGES_KEPT_HOURS)
        if self._network.secrets:
            for stage in self._engine.find_dangling_images(LABEL_BUILD_STAGE) - self._stages_before:
                with contextlib.suppress(EngineError):  # a build of another process uses it
                    self._engine.remove_image(stage)

    def run(self, builds: Sequence[Build]) -> None:
        """Build each; raises the first error as soon as it is there."""
        for done in as_completed([self._pool.submit(self._build, build) for build in builds]):
            done.result()

    def _give_up(self) -> None:
        with self._lock:
            self._given_up.set()
            logs, self._logs = self._logs, []
        for log in logs:
            log.close()

    def _build(self, build: Build) -> None:
        with self._only_builder(build.tag):
            if self._engine.find_image_id(build.tag) is not None:  # another process built it while this one waited
                return
            logger.info("building %s", build.tag)
            started = time.monotonic()
            log = self._engine.build_image(
                build.context.to_tar(),
                tag=build.tag,
                build_args={**self._network.build_args, **build.arguments},
                labels=build.labels(),
            )
            with contextlib.closing(log):
                with self._lock:
                    self._check_given_up(build.tag)
                    self._logs.append(log)
                with self._deadline(build, log):
                    self._follow(build, log)
            self._check_history(build)
            logger.info("built %s in %.1f s", build.tag, time.monotonic() - started)

    @contextlib.contextmanager
    def _deadline(self, build: Build, log: LogStream) -> Iterator[None]:
        """Break a build off on the engine once its time is up."""
        is_late = threading.Event()

        def expire() -> None:
            is_late.set()
            log.close()

        timer = threading.Timer(self._timeout_s, expire)
        timer.start()
        try:
            yield
        except ImageError as error:
            if not is_late.is_set():
                raise
            raise ImageError(
                f"building {build.tag} took longer than {self._timeout_s:g} s. Mend what its log hangs on, or allow "
                f"more with image_build_timeout_seconds.\n{error}",
                log_tail=error.log_tail,
            ) from error
        finally:
            timer.cancel()
            timer.join()

    def _check_history(self, build: Build) -> None:
        """Keep no image that tells this host's passwords to whoever gets it: one whose last stage declares them."""
        if not self._network.secrets:
            return
        history = self._engine.read_history(build.tag)
        if any(secret in history for secret in self._network.secrets):
            self._engine.remove_image(build.tag)
            declared = ", ".join(name for name in self._network.build_args if name.startswith("PIP_"))
            raise ImageError(
                f"The image {build.tag} would carry a password of this host's network settings in its history, and was "
                f"removed. Its Dockerfile must declare {declared or 'them'} in stages before the last one only."
            )

    def _follow(self, build: Build, log: LogStream) -> None:
        """Read a build's log to its end, into its file. Raises what the build failed with, naming the file."""
        path = log_file(self._log_folder, build.tag)
        with self._explained(self._log_folder):
            self._log_folder.mkdir(parents=True, exist_ok=True)
            file = path.open("w", encoding="utf-8")
        with file:
            try:
                with Telling(build.tag, build.context.repository, "building") as telling:
                    for text in _told(telling, log):
                        self._write(file, text)
            except ImageError as error:
                self._write(file, f"\n{error}\n")
                message = f"{self._clean(str(error))}\n{_advice(str(error))}The whole log: {path}"
                raise ImageError(message, log_tail=self._clean(error.log_tail)) from error

    def _write(self, file: TextIO, text: str) -> None:
        file.write(self._clean(text))

    def _clean(self, text: str) -> str:
        return _plain(self._network.redact(text))

    @contextlib.contextmanager
    def _only_builder(self, tag: str) -> Iterator[None]:
        """Hold the lock of a tag; says so when another process holds it, and goes on waiting."""
        lock = FileLock(self._lock_folder / f"{_file_name(tag)}.lock")

        def say_once(state: RetryCallState) -> None:
            if state.attempt_number == _LOCK_PATIENCE:
                logger.info("another process builds %s: waiting for it", tag)

        retrying = Retrying(
            retry=retry_if_exception_type(Timeout), before=lambda _: self._check_given_up(tag), after=say_once
        )
        with self._explained(self._lock_folder):
            self._lock_folder.mkdir(parents=True, exist_ok=True)
            retrying(lock.acquire, timeout=_LOCK_WAIT_S)
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _explained(self, folder: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"The folder {folder} for build locks and logs cannot be written to ({error}). "
                "Set XDG_CACHE_HOME to a folder that can be, or change its owner."
            ) from error

    def _check_given_up(self, tag: str) -> None:
        if self._given_up.is_set():
            raise ImageError(f"building {tag} was given up")


def log_file(folder: Path, tag: str) -> Path:
    """Where the whole log of a tag's build stands."""
    return folder / f"{_file_name(tag)}.log"


def _advice(said: str) -> str:
    if "no space left on device" not in said.lower():
        return ""
    return "The engine's disk is full: `gym images prune` and `docker system prune` free what nothing needs.\n"


def _plain(text: str) -> str:
    """``text`` without the colours that an engine gives to what a step writes to its standard error."""
    return _COLOUR.sub("", text)


def _told(telling: Telling, log: Iterable[str]) -> Iterator[str]:
    """The pieces of a log; the steps are told as they begin, and logged where the build takes its time."""
    logged_at = time.monotonic()
    for text in map(_plain, log):
        if text.strip():
            logger.debug("%s: %s", telling.repository, text.rstrip())
        step = _STEP.match(text)
        if step is not None:
            telling.tell(f"step {step[1]}/{step[2]}")
            if not is_observed() and time.monotonic() - logged_at > _PROGRESS_EVERY_S:
                logged_at = time.monotonic()
                logger.info("%s: step %s of %s: %.80s", telling.repository, *step.groups())
        yield text


def _file_name(tag: str) -> str:
    return tag.replace("/", "_").replace(":", "_")
