"""What the session's owner tells the registry while it serves, as JSON lines down the registry's stdin."""

from __future__ import annotations

import datetime
import json
import logging
import threading
from collections.abc import Mapping

from nemo_gym.config.redaction import redact_config
from nemo_gym.config.resolve import dump_config
from nemo_gym.containers.deaths import Death, death_line
from nemo_gym.containers.engine import Stdin
from nemo_gym.deployment.topology import Topology
from nemo_gym.deployment.views import host_view, server_instances
from nemo_gym.errors import EngineError, EngineUnavailableError

logger = logging.getLogger(__name__)


class RegistryFeed:
    """The open stdin of the registry's container."""

    def __init__(self, stdin: Stdin) -> None:
        self._stdin = stdin
        self._lock = threading.Lock()
        self._closed = False

    def send_host_view(self, topology: Topology, addresses: Mapping[str, tuple[str, int]]) -> None:
        """The config as the caller sees it, secrets masked, and every server's address. Makes the registry ready."""
        view = redact_config(host_view(topology, addresses))
        now = datetime.datetime.now(datetime.UTC).isoformat()
        message = {
            "type": "host_view",
            "config_yaml": dump_config(view),
            "server_instances": server_instances(topology, addresses, dict.fromkeys(topology.names, now)),
        }
        self._send(json.dumps(message, ensure_ascii=False).encode() + b"\n")

    def send_death(self, server: str, death: Death, log_tail: str) -> None:
        """A server has died; ``log_tail`` is the redacted end of its log."""
        try:
            self._send(death_line(server, death, log_tail))
        except (EngineError, EngineUnavailableError) as error:
            logger.debug("the registry cannot be told of it: %s", error)

    def _send(self, line: bytes) -> None:
        with self._lock:
            if not self._closed:
                self._stdin.send(line)

    def close(self) -> None:
        """Close it. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._stdin.close()
