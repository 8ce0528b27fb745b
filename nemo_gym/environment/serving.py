"""Serve what config files declare, with this process's Gym configuration set meanwhile.

``serve_benchmark``, ``gym eval run`` and ``gym env start`` share it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_gym.deployment.launch import RunningSession


def serving_config_paths(benchmark: str, model_type: str, search_dirs: Sequence[str] = ()) -> list[Path]:
    """The config files of a benchmark ``NAME[/FLAVOR]`` and of a model type; ``ConfigError`` with nearest names."""
    from nemo_gym.config.discovery import find_benchmark_config, find_model_config
    from nemo_gym.config.sources import search_roots

    roots = search_roots(search_dirs)
    return [find_benchmark_config(benchmark, roots), find_model_config(model_type, roots)]


@contextlib.contextmanager
def serve(
    config_paths: Sequence[str | Path],
    overrides: Mapping[str, Any] | None = None,
    *,
    registry_port: int | None = None,
    default_registry_port: int | None = None,
    search_dirs: Sequence[str] = (),
) -> Iterator[RunningSession]:
    """Start every server of the merged config files, and stop them on exit. Yields the running session.

    The registry's port is ``registry_port``, else ``head_server.port`` where the config sets it, else
    ``default_registry_port``, else one that the engine assigns. Raises ``ConfigError``; nothing is left running then,
    and this process's configuration is as before.
    """
    from nemo_gym.config.process_config import process_config
    from nemo_gym.config.resolve import load_config, to_plain
    from nemo_gym.deployment.launch import serve_config

    config = load_config(config_paths, overrides, search_dirs=search_dirs, serving=True)
    with (
        process_config(config, serving=True),
        serve_config(
            to_plain(config),
            registry_port=registry_port,
            default_registry_port=default_registry_port,
            search_dirs=search_dirs,
        ) as session,
    ):
        yield session


def serve_detached(
    config_paths: Sequence[str | Path],
    overrides: Mapping[str, Any] | None = None,
    *,
    registry_port: int | None = None,
    default_registry_port: int | None = None,
    search_dirs: Sequence[str] = (),
) -> RunningSession:
    """Like ``serve``, and leave the servers running when this process ends; ``gym env stop`` ends them."""
    from nemo_gym.config.process_config import process_config
    from nemo_gym.config.resolve import load_config, to_plain
    from nemo_gym.deployment.launch import start_detached

    config = load_config(config_paths, overrides, search_dirs=search_dirs, serving=True)
    with process_config(config, serving=True):
        return start_detached(
            to_plain(config),
            registry_port=registry_port,
            default_registry_port=default_registry_port,
            search_dirs=search_dirs,
        )
