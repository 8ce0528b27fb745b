"""Texts that a server's settings name on the caller's machine: ``files: {recordings: results/x.jsonl}``.

No folder is mounted into a container, so what such a file holds travels with the server's configuration, over stdin.
"""

from __future__ import annotations

from collections.abc import Mapping

from nemo_gym.config.home import expanded
from nemo_gym.deployment.topology import ServedServer, Topology
from nemo_gym.errors import ConfigError

FILES = "files"


def load_server_files(topology: Topology) -> dict[str, dict[str, str]]:
    """What each server's files hold, by the name that its settings give them. A file set to null is left out."""
    own = [server for server in topology.servers if not server.is_foreign]
    return {server.name: _load(server) for server in own if server.instance.settings.get(FILES)}


def _load(server: ServedServer) -> dict[str, str]:
    files = server.instance.settings[FILES]
    if not isinstance(files, Mapping) or not all(path is None or isinstance(path, str) for path in files.values()):
        raise ConfigError(f"{FILES} of server {server.name!r} must map names to paths; found {files!r}.")
    return {name: _read(server.name, name, path) for name, path in files.items() if path is not None}


def _read(server: str, name: str, path: str) -> str:
    place = expanded(path, f"{FILES}.{name} of server {server!r}")
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no UTF-8 text ({error.reason})"
        raise ConfigError(
            f"Server {server!r} needs the file {FILES}.{name}, and {place.absolute()} cannot be read: {why}."
        ) from error
