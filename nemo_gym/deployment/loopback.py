"""The relays of one session: each loopback endpoint that its servers call, at an address that containers reach."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping, Sequence

from nemo_gym.containers import relay
from nemo_gym.containers.engine import Endpoint, NetworkState
from nemo_gym.containers.keeper import Keeper
from nemo_gym.errors import ConfigError

Address = tuple[str, int]

# where servers say that they listen, and people therefore say that they are called
_DIALLED = {"0.0.0.0": "127.0.0.1", "::": "::1"}


_HTTPS_HINT = (
    "Containers see this machine's loopback under another address, which no certificate of it names: let the endpoint "
    "speak plain http:// there (it does not leave this machine), or name an address that its certificate is for"
)


class LoopbackRelays:
    """Opened once the session's network is there; the keeper carries the connections."""

    def __init__(self, targets: Sequence[Address]) -> None:
        self._targets = targets
        self._addresses: dict[Address, Address] = {}

    @property
    def addresses(self) -> Mapping[Address, Address]:
        """Each endpoint on the caller's loopback -> the relay's address in the session's network."""
        return self._addresses

    def check(self, endpoint: Endpoint) -> None:
        """Raise ``ConfigError`` when there are targets and the engine is on another machine."""
        if self._targets and not endpoint.is_local:
            named = ", ".join(f"{host}:{port}" for host, port in self._targets)
            raise ConfigError(
                f"The config names endpoints on this machine's loopback ({named}), and the engine at {endpoint.url} is "
                "on another machine, whose containers cannot reach them. Let the model server listen on an address "
                "that that machine can reach, and name that address."
            )

    def open(self, network: NetworkState, keeper: Keeper) -> None:
        """Listen on the network's gateway for each target, and hand the listeners to the keeper."""
        with contextlib.ExitStack() as ours:  # the keeper has copies of its own
            listeners = []
            for host, port in self._targets:
                target = relay.Target(_DIALLED.get(host, host), port)
                listener = ours.enter_context(relay.bind_listener(network.gateway, target))
                listeners.append((listener, target))
                self._addresses[host, port] = (network.gateway, listener.getsockname()[1])
            keeper.carry(listeners, network.subnet)

    def as_the_caller_sees(self, text: str) -> str:
        """A relay's address, which means nothing to the user, as the loopback endpoint that it stands for."""
        for (host, port), (relay_host, relay_port) in self._addresses.items():
            relayed = re.compile(rf"(?<![\d.]){re.escape(f'{relay_host}:{relay_port}')}(?!\d)")
            if relayed.search(text) is None:
                continue
            own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            text = relayed.sub(own, text)
            if not _is_listening(_DIALLED.get(host, host), port):
                text = f"nothing listens on {own} on this machine ({text})"
            elif "certificate" in text:
                text += f". {_HTTPS_HINT}"
        return text


def _is_listening(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
