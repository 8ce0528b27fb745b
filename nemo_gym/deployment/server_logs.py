"""Servers' logs, kept on disk before their containers are removed."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Callable
from pathlib import Path

from nemo_gym.containers.engine import ContainerEngine
from nemo_gym.containers.labels import SERVER, selector
from nemo_gym.errors import ConfigError, EngineError

logger = logging.getLogger(__name__)

_WHOLE_LOG_LINES = 100_000


def save_logs(engine: ContainerEngine, session_id: str, folder: Path, redact: Callable[[str], str]) -> Path | None:
    """Write every server's log to ``folder/<session>/<server>.log``, redacted; None when there was nothing to write.

    Never raises: it runs while something else is being wound up, and must not take that one's place.
    """
    target = folder / session_id
    try:
        for container in engine.list_containers(selector(session_id)):
            with contextlib.suppress(EngineError):  # removed meanwhile
                text = redact(engine.read_log(container.id, _WHOLE_LOG_LINES))
                target.mkdir(parents=True, exist_ok=True)
                name = re.sub(r"[^A-Za-z0-9_.-]", "-", container.labels.get(SERVER, container.name))
                (target / f"{name}.log").write_text(text, encoding="utf-8")
    except (OSError, EngineError, ConfigError) as error:
        logger.warning("the servers' logs could not be kept in %s: %s", folder, error)
    return target if target.is_dir() else None


class ServerLogs:
    """The logs of one session, saved once: by the failure that they explain, else at the session's end."""

    def __init__(self, engine: ContainerEngine, session_id: str, folder: Path, redact: Callable[[str], str]) -> None:
        self._save = functools.partial(save_logs, engine, session_id, folder, redact)
        self._is_saved = False
        self._saved_to: Path | None = None

    def save(self) -> Path | None:
        """Where they are; None when there was nothing to save."""
        if not self._is_saved:
            self._is_saved = True
            self._saved_to = self._save()
            if self._saved_to is not None:
                logger.info("the servers' logs are in %s", self._saved_to)
        return self._saved_to
