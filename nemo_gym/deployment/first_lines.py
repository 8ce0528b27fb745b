"""The first line that each server reads from its standard input. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from nemo_gym.config.resolve import dump_config
from nemo_gym.deployment.foreign import config_line
from nemo_gym.deployment.topology import REGISTRY, Topology
from nemo_gym.deployment.views import (
    Address,
    bootstrap_line,
    container_view,
    foreign_view,
    inside_urls,
    inside_view,
)


def first_line(
    topology: Topology,
    name: str,
    relays: Mapping[Address, Address],
    *,
    session_id: str,
    session_secret: str,
    token: str | None,
    files: Mapping[str, str] | None = None,
) -> bytes:
    """What the server ``name``, or the registry, is told at its start.

    ``relays`` maps endpoints on the loopback; ``files`` are the texts of ``server_files``.
    """
    line = functools.partial(
        bootstrap_line, session_id=session_id, server_name=name, session_secret=session_secret, token=token
    )
    if name == REGISTRY:
        config = {"inside_view": dump_config(inside_view(topology))}
        return line(config=config, awaited=topology.names, inside=inside_urls(topology))
    server = next(server for server in topology.servers if server.name == name)
    if server.is_foreign:
        return config_line(foreign_view(topology, server, relays))
    return line(config=container_view(topology, server, relays), files=files or {})
