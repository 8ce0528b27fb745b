"""Servers written elsewhere for the same protocol: they expect their configuration in environment variables.

``NEMO_GYM_CONFIG_DICT`` is YAML of the config dict that the server may see, ``NEMO_GYM_CONFIG_PATH`` its own name in
it. Both are set by a line of shell, the container's first process, which reads the dict from standard input and then
becomes the server: so they stand in that process's environment alone, and neither in the container's configuration nor
in what the engine shows of it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.config.config_types import find_server_refs
from nemo_gym.containers.engine import ContainerEngine, ImageState
from nemo_gym.containers.spec import ContainerSpec
from nemo_gym.deployment.settings import ServingSettings
from nemo_gym.deployment.topology import ServedServer, Topology
from nemo_gym.deployment.views import foreign_view
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

MOST_CONFIG_BYTES = 127 * 1024
"""One environment string may have 128 KiB on Linux, its name included (``MAX_ARG_STRLEN``, execve(2))."""

ORDINARY_USER = "10001:10001"
"""Whom a server runs as whose image would run it as root; in images of ours it is called gym."""

# In any POSIX shell. A home that cannot be written to is what a user has whom the image does not know.
_ENTRY = """\
IFS= read -r NEMO_GYM_CONFIG_DICT || { echo 'no configuration came on standard input' >&2; exit 1; }
NEMO_GYM_CONFIG_PATH=$1
export NEMO_GYM_CONFIG_DICT NEMO_GYM_CONFIG_PATH
[ -w "${HOME:-/}" ] || export HOME=/tmp
shift
exec "$@" </dev/null"""

_OUR_COMMAND = ("python", "app.py")
"""What the base image runs, and with it every image that names no command of its own."""

# what a YAML 1.1 reader takes for a line break or refuses when it stands in a text as it is (YAML 1.1, 5.1 and 5.4)
_NOT_AS_IT_IS = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def check(topology: Topology, settings: ServingSettings) -> None:
    """Raise ``ConfigError`` for what a server written elsewhere cannot be or do in this session."""
    for server in topology.servers:
        if not server.is_foreign:
            continue
        size = len(config_line(foreign_view(topology, server, {})))
        if size > MOST_CONFIG_BYTES:
            raise ConfigError(
                f"The configuration of server {server.name!r} has {size} bytes. It comes in an environment variable "
                f"(container.config_from: environment), which holds {MOST_CONFIG_BYTES}. Its largest setting is "
                f"{_largest(server)!r}: let it read what is large from a file in its image folder."
            )
        if settings.token is not None:
            _check_token(server, settings)


def _check_token(server: ServedServer, settings: ServingSettings) -> None:
    called = find_server_refs(server.instance.settings)
    if called:
        raise ConfigError(
            f"The server {server.name!r} was written elsewhere (container.config_from: environment) and calls "
            f"{called[0].name!r}, which asks for this session's token (NEMO_GYM_TOKEN), of which it knows nothing. "
            "Serve without a token: on 127.0.0.1 none is needed."
        )
    if server.is_internal:
        return
    if not settings.is_loopback:
        raise ConfigError(
            f"The server {server.name!r} was written elsewhere (container.config_from: environment) and asks nobody "
            f"for this session's token, so that at {settings.bind_address} everybody could call it. Take it off that "
            "address with `container: {network: internal}`, or set bind_address to 127.0.0.1."
        )
    logger.warning("server %s was written elsewhere and does not ask for the token", server.name)


def _largest(server: ServedServer) -> str:
    settings = server.instance.settings
    return max(settings, key=lambda key: len(yaml_line(settings[key])))


def config_line(view: Mapping[str, Any]) -> bytes:
    """What the server's first process reads: the config dict as YAML on one line, and the line's end."""
    return yaml_line(view).encode() + b"\n"


def yaml_line(node: Any) -> str:
    """``node`` as one line that is JSON and, to readers of YAML 1.1 too, YAML of the same values.

    JSON as usually written is not quite that: YAML 1.1 takes ``1e-07`` for a text, and some characters for line breaks.
    """
    if isinstance(node, Mapping):
        return "{" + ", ".join(f"{_text(str(key))}: {yaml_line(value)}" for key, value in node.items()) + "}"
    if isinstance(node, list | tuple):
        return "[" + ", ".join(map(yaml_line, node)) + "]"
    if isinstance(node, float):
        return _number(node)
    return _text(node) if isinstance(node, str) else json.dumps(node, default=str)


def _text(text: str) -> str:
    return _NOT_AS_IT_IS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def _number(number: float) -> str:
    if not math.isfinite(number):  # JSON has none of these
        return ".nan" if math.isnan(number) else ".inf" if number > 0 else "-.inf"
    digits, exponent, power = repr(number).partition("e")
    return digits if not exponent else f"{digits}{'' if '.' in digits else '.0'}e{power}"


def with_entries(engine: ContainerEngine, topology: Topology, specs: Sequence[ContainerSpec]) -> list[ContainerSpec]:
    """``specs``, with the entry of each server written elsewhere before what its image runs.

    Raises ``ConfigError`` when an image names no command.
    """
    foreign = {server.name: server for server in topology.servers if server.is_foreign}
    return [
        with_entry(spec, foreign[spec.alias], engine.find_image(spec.image)) if spec.alias in foreign else spec
        for spec in specs
    ]


def with_entry(spec: ContainerSpec, server: ServedServer, image: ImageState | None) -> ContainerSpec:
    """The spec of one such server: first the entry, and nobody's root."""
    command = spec.command or (() if image is None else image.command)
    if not command:
        raise ConfigError(
            f"The image {spec.image} of server {server.name!r} names no command to run. Name it in the server's "
            "config: `container: {command: [python, app.py]}`."
        )
    if command == _OUR_COMMAND:
        command = (command[0], str(server.instance.settings.get("entrypoint", command[1])))
    hardening = spec.hardening
    if hardening.user is None and (image is None or image.user.partition(":")[0] in ("", "0", "root")):
        hardening = dataclasses.replace(hardening, user=ORDINARY_USER)
    entry = ("/bin/sh", "-c", _ENTRY, "sh", server.name, *command)
    return dataclasses.replace(spec, command=entry, hardening=hardening)
