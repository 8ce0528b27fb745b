"""Notices the death of a session's containers within tens of milliseconds, from the engine's event stream."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_exponential,
)

from nemo_gym.containers.engine import ContainerEngine, EventStream
from nemo_gym.errors import EngineError, EngineNotFoundError, EngineUnavailableError

logger = logging.getLogger(__name__)

_RECONNECT_S = 20.0


@dataclass(frozen=True, slots=True)
class Death:
    """How a watched container ended. ``exit_code`` is None when the engine itself went away."""

    container_id: str
    exit_code: int | None
    oom_killed: bool
    error: str


def death_line(server: str, death: Death, log_tail: str = "") -> bytes:
    """What the registry is told of a server's death: one JSON line for its stdin. ``log_tail`` is redacted already."""
    how = death.error or ("killed for using too much memory" if death.oom_killed else "its process ended")
    message = {
        "type": "server_died",
        "name": server,
        "exit_code": death.exit_code,
        "oom_killed": death.oom_killed,
        "detail": f"{how}; the end of its log: {log_tail}" if log_tail else how,
    }
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


class DeathWatch:
    """Watches containers of one label. Subscribe (make it) before the first of them is started."""

    def __init__(self, engine: ContainerEngine, label: str) -> None:
        self._engine = engine
        self._label = label
        self._stream: EventStream = engine.deaths(label)
        self._lock = threading.Lock()
        self._events: dict[str, threading.Event] = {}
        self._deaths: dict[str, Death] = {}
        self._on_death: Callable[[Death], None] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="nemo-gym-deaths", daemon=True)
        self._thread.start()

    def watch(self, container_id: str) -> threading.Event:
        """An event that is set when the container dies, or when ``give_up`` is called."""
        with self._lock:
            return self._events.setdefault(container_id, threading.Event())

    def find_death(self, container_id: str) -> Death | None:
        """The container's death, if it has died."""
        with self._lock:
            return self._deaths.get(container_id)

    def notify(self, on_death: Callable[[Death], None]) -> None:
        """Call ``on_death`` for every death, those that already happened included."""
        with self._lock:
            self._on_death = on_death
            past = list(self._deaths.values())
        for death in past:
            on_death(death)

    def give_up(self) -> None:
        """Set every container's event: nobody needs to wait any longer."""
        with self._lock:
            events = list(self._events.values())
        for event in events:
            event.set()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        with self._lock:
            self._closed.set()
            self._on_death = None
            stream = self._stream
        stream.close()
        self._thread.join(timeout=5)

    def _read(self) -> None:
        while True:
            for died in self._stream:
                self._record(died.container_id, died.exit_code)
            if self._closed.is_set() or not self._resubscribe():
                return
            self._look_again()

    def _record(self, container_id: str, exit_code: int | None = None) -> None:
        """Report a death. ``exit_code`` is what the event told, for when the engine cannot say any more."""
        try:
            state = self._engine.inspect_container(container_id)
            code = exit_code if state.exit_code is None else state.exit_code
            death = Death(container_id, code, state.oom_killed, state.error)
        except EngineNotFoundError:
            death = Death(container_id, exit_code, False, "the container was removed")
        except (EngineError, EngineUnavailableError) as error:
            death = Death(container_id, exit_code, False, str(error))
        self._report(death)

    def _report(self, death: Death) -> None:
        with self._lock:
            if self._closed.is_set() or death.container_id in self._deaths:
                return
            self._deaths[death.container_id] = death
            event = self._events.setdefault(death.container_id, threading.Event())
            on_death = self._on_death
        event.set()
        if on_death is not None:
            on_death(death)

    def _resubscribe(self) -> bool:
        """The engine ended the stream (it restarts, say): subscribe again, or report every container as lost."""
        retrying = Retrying(
            retry=retry_if_exception_type((EngineError, EngineUnavailableError)),
            wait=wait_exponential(multiplier=0.05, max=1.0),
            stop=stop_any(stop_after_delay(_RECONNECT_S), stop_when_event_set(self._closed)),
            sleep=sleep_using_event(self._closed),
        )
        try:
            stream = retrying(self._engine.deaths, self._label)
        except RetryError:
            if self._closed.is_set():
                return False
            logger.warning("the container engine has stopped answering")
            for container_id in list(self._events):
                self._report(Death(container_id, None, False, "the container engine stopped answering"))
            return False
        with self._lock:
            if self._closed.is_set():
                stream.close()
                return False
            self._stream = stream
        return True

    def _look_again(self) -> None:
        """Deaths that nobody told of while the stream was away."""
        for container_id in list(self._events):
            try:
                if self._engine.inspect_container(container_id).is_dead:
                    self._record(container_id)
            except EngineNotFoundError:
                self._record(container_id)
            except (EngineError, EngineUnavailableError) as error:
                logger.debug("%s: %s", container_id, error)
