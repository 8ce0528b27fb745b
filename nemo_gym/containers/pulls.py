"""Images pulled: with progress, an end to pulls that stall, and patience with registries that are busy.

A pull may take any time as long as bytes arrive. What the registry refuses for the moment (too many requests, its own
errors, broken connections) is tried again, not before the moment that it names; everything else fails at once, and
nothing else is taken in an image's place. Leaving by an exception or a Ctrl-C ends the pulls on the engine as well,
which drops what it had of them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_attempt,
    wait_exponential_jitter,
)

from nemo_gym.containers import background
from nemo_gym.containers.engine import ContainerEngine, PullStep, PullStream
from nemo_gym.containers.image_progress import Telling, is_observed
from nemo_gym.containers.pull_failures import PullCause, advice_for, find_cause, find_retry_after
from nemo_gym.containers.references import ImageReference
from nemo_gym.containers.retry_after import ask_retry_after
from nemo_gym.errors import ImageError

logger = logging.getLogger(__name__)

STALL_TIMEOUT_S = 60.0
REPORT_INTERVAL_S = 3.0

_ATTEMPTS = 6
_LONGEST_WAIT_S = 600.0
"""A registry that wants more patience than this is reported instead."""

_TICK_S = 0.1
_END_DEADLINE_S = 3.0

_backoff = wait_exponential_jitter(initial=1, max=30)


class _TransientError(Exception):
    """What may be over in a moment."""

    def __init__(self, error: ImageError, cause: PullCause, retry_after_s: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.cause = cause
        self.retry_after_s = retry_after_s


def pull_images(
    engine: ContainerEngine,
    references: Iterable[ImageReference],
    *,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    platforms: Mapping[ImageReference, str] | None = None,
) -> None:
    """Pull every one, at the same time, whether the engine has it or not.

    Raises ``ImageError`` for the first that fails, which ends the others: what the engine said, and what to do.
    A digest that a reference names is that of the image that arrived, and so is its platform among ``platforms``;
    the engine's own is taken for the others.
    """
    with _Pulls(engine, stall_timeout_s, platforms or {}) as pulls:
        pulls.run(list(dict.fromkeys(references)))


class Transfer:
    """How far one pull is. Fed by the thread that reads it, looked at by the one that waits."""

    def __init__(self, reference: ImageReference, now: float) -> None:
        self.reference = reference
        self.moved_at = now
        self.is_waiting = False  # for the registry, before the next attempt
        self._status: dict[str, str] = {}
        self._bytes: dict[str, tuple[int, int]] = {}

    def begin(self, now: float) -> None:
        """A new attempt begins."""
        self.moved_at = now
        self.is_waiting = False
        self._status = {}
        self._bytes = {}

    def take(self, step: PullStep, now: float) -> None:
        """Take a step into account. Waiting and counting down is no movement."""
        if step.status.startswith(("Retrying", "Waiting")):
            return
        done = (step.done_bytes, step.total_bytes)
        if self._status.get(step.layer) != step.status or (step.done_bytes and self._bytes.get(step.layer) != done):
            self.moved_at = now
        self._status[step.layer] = step.status
        if step.layer and step.status == "Downloading":
            self._bytes[step.layer] = done
        elif step.status in ("Download complete", "Pull complete") and step.layer in self._bytes:
            self._bytes[step.layer] = (self._bytes[step.layer][1],) * 2

    def progress(self) -> str:
        """For people: ``42 % (63.0 of 150.0 MB, 2 of 5 layers)``, of the layers whose size is known so far."""
        layers = {layer: status for layer, status in list(self._status.items()) if layer and "from" not in status}
        complete = sum(status in ("Pull complete", "Already exists") for status in layers.values())
        return f"{self.amount().removesuffix(')')}, {complete} of {len(layers)} layers)"

    def amount(self) -> str:
        """The same in short: ``42 % (63.0 of 150.0 MB)``."""
        sizes = list(self._bytes.values())
        done, total = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        share = f"{100 * done // total} %" if total else "0 %"
        return f"{share} ({done / 1e6:.1f} of {total / 1e6:.1f} MB)"


class _Pulls:
    """Pulls under way, each read by a thread; the caller's thread watches over them."""

    def __init__(
        self, engine: ContainerEngine, stall_timeout_s: float, platforms: Mapping[ImageReference, str]
    ) -> None:
        self._engine = engine
        self._platforms = platforms
        self._stall_timeout_s = stall_timeout_s
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._streams: dict[ImageReference, PullStream] = {}
        self._transfers: dict[ImageReference, Transfer] = {}
        self._stalled: set[ImageReference] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Pulls:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._given_up.set()
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        end = time.monotonic() + _END_DEADLINE_S
        for thread in self._threads:
            # one that waits for the engine's first word cannot be woken, and has nothing to clean up
            thread.join(max(0.0, end - time.monotonic()))

    def run(self, references: list[ImageReference]) -> None:
        """Pull them; raises the first error as soon as it is there."""
        pending: set[Future[None]] = {self._start(reference) for reference in references}
        reported = time.monotonic()
        while pending:
            done, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            now = time.monotonic()
            self._end_stalled(now)
            if now - reported >= REPORT_INTERVAL_S and not is_observed():
                reported = now
                self._report()

    def _start(self, reference: ImageReference) -> Future[None]:
        self._transfers[reference] = Transfer(reference, time.monotonic())
        future, thread = background.start(f"nemo-gym-pull-{reference.path}", self._pull, reference)
        self._threads.append(thread)
        return future

    def _end_stalled(self, now: float) -> None:
        for reference, transfer in self._transfers.items():
            with self._lock:
                stream = self._streams.get(reference)
                if stream is None or transfer.is_waiting or now - transfer.moved_at < self._stall_timeout_s:
                    continue
                self._stalled.add(reference)
            stream.close()

    def _report(self) -> None:
        for reference in list(self._streams):
            logger.info("pulling %s: %s", reference, self._transfers[reference].progress())

    # -- in the threads ----------------------------------------------------------------------------------------

    def _pull(self, reference: ImageReference) -> None:
        logger.info("pulling %s", reference)
        with Telling(str(reference), reference.repository, "pulling") as telling:
            self._pull_patiently(reference, telling)

    def _pull_patiently(self, reference: ImageReference, telling: Telling) -> None:
        started = time.monotonic()
        retrying = Retrying(
            retry=retry_if_exception_type(_TransientError),
            wait=_wait_s,
            stop=stop_after_attempt(_ATTEMPTS),
            sleep=sleep_using_event(self._given_up),
            before_sleep=self._say_waiting(reference, telling),
            reraise=True,
        )
        try:
            retrying(self._attempt, reference, telling)
        except _TransientError as failed:
            raise _explained(failed.error, failed.cause, reference, failed.retry_after_s) from failed
        _check_arrived(self._engine, reference, self._platforms.get(reference, ""))
        logger.info("pulled %s in %.1f s", reference, time.monotonic() - started)

    def _attempt(self, reference: ImageReference, telling: Telling) -> None:
        transfer = self._transfers[reference]
        transfer.begin(time.monotonic())
        # a little later than a stall is seen: whoever closes the stream first names the reason
        stream = self._engine.pull_image(
            str(reference), silence_s=self._stall_timeout_s + 1.0, platform=self._platforms.get(reference, "")
        )
        with contextlib.closing(stream):
            with self._lock:
                if self._given_up.is_set():
                    raise ImageError(f"pulling {reference} was given up")
                self._streams[reference] = stream
            try:
                told_at = 0.0
                for step in stream:
                    now = time.monotonic()
                    transfer.take(step, now)
                    if now - told_at >= _TICK_S:
                        told_at = now
                        telling.tell(transfer.amount())
                    logger.debug(
                        "%s: %s %s %d/%d", reference, step.layer, step.status, step.done_bytes, step.total_bytes
                    )
            except ImageError as error:
                raise self._judged(error, reference) from error
            finally:
                with self._lock:
                    del self._streams[reference]

    def _judged(self, error: ImageError, reference: ImageReference) -> Exception:
        """What an attempt's failure is: of this pull, or of this moment."""
        if self._given_up.is_set():
            return error
        if reference in self._stalled:
            return ImageError(
                f"Pulling {reference} stalled at {self._transfers[reference].progress()}: nothing arrived for "
                f"{self._stall_timeout_s:g} seconds. Check the registry and the way to it; where it is only slow to "
                "begin, set image_pull_stall_timeout_seconds.",
                log_tail=error.log_tail,
            )
        said = str(error).partition("\nEnd of the log:")[0]
        cause = find_cause(said)
        if not cause.is_transient:
            return _explained(error, cause, reference, None)
        retry_after = find_retry_after(said)
        if (
            retry_after is None
            and cause is PullCause.BUSY
            and (self._engine.endpoint.is_local or not reference.is_loopback)
        ):
            retry_after = ask_retry_after(reference)
        if retry_after is not None and retry_after > _LONGEST_WAIT_S:
            return _explained(error, cause, reference, retry_after)
        return _TransientError(error, cause, retry_after)

    def _say_waiting(self, reference: ImageReference, telling: Telling) -> Callable[[RetryCallState], None]:
        def say(state: RetryCallState) -> None:
            self._transfers[reference].is_waiting = True
            failed = state.outcome.exception() if state.outcome is not None else None
            said = str(failed).partition("\nEnd of the log:")[0]
            logger.info("%s; trying again in %.1f s", said, state.upcoming_sleep)
            telling.tell(f"waits {state.upcoming_sleep:.0f} s for the registry")

        return say


def _wait_s(state: RetryCallState) -> float:
    """What the registry asks for, else longer each time."""
    failed = state.outcome.exception() if state.outcome is not None else None
    asked = failed.retry_after_s if isinstance(failed, _TransientError) else None
    return _backoff(state) if asked is None else asked


def _explained(
    error: ImageError, cause: PullCause, reference: ImageReference, retry_after_s: float | None
) -> ImageError:
    said = str(error).removesuffix("\nEnd of the log:\n(empty)")
    later = "" if retry_after_s is None else f"It asks to be left alone for {retry_after_s:.0f} seconds."
    parts = [said, advice_for(cause, reference.registry), later]
    return ImageError("\n".join(filter(None, parts)), log_tail=error.log_tail)


def _check_arrived(engine: ContainerEngine, reference: ImageReference, platform: str) -> None:
    found = engine.find_image(str(reference))
    if found is None:
        raise ImageError(f"{reference} was pulled, and the engine does not have it. It may have been removed at once.")
    if reference.digest and not any(name.endswith(f"@{reference.digest}") for name in found.repo_digests):
        arrived = ", ".join(found.repo_digests) or "none"
        raise ImageError(
            f"{reference} was pulled, and what arrived is another image: its digests are {arrived}. "
            "Do not use it before you know why."
        )
    if platform and found.platform != platform:
        raise ImageError(
            f"{reference} was pulled for {platform}, as its image.platform says, and what arrived is for "
            f"{found.platform}. Name an image that there is for {platform}, or correct image.platform."
        )
    logger.debug("%s is %s (%s)", reference, found.id, ", ".join(found.repo_digests))
