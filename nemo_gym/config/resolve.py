"""From config files and overrides to one checked config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.config.merging import merge_all
from nemo_gym.config.overrides import checked_overrides
from nemo_gym.config.sources import find_config_file, load_config_tree, load_env_file, search_roots

if TYPE_CHECKING:
    from omegaconf import DictConfig


def load_config(
    config_paths: Sequence[str | Path],
    overrides: Mapping[str, Any] | None = None,
    *,
    search_dirs: Iterable[str | Path] = (),
    serving: bool,
) -> DictConfig:
    from omegaconf import OmegaConf

    given = checked_overrides(overrides)
    roots = search_roots(search_dirs)
    files = load_config_tree(config_paths, roots)
    env = load_env_file()
    layers = [content for _, content in files] + ([env[1]] if env else []) + [given]
    merged = merge_all(layers)
    merged["config_paths"] = [str(find_config_file(path, roots)) for path in config_paths]
    return OmegaConf.create(merged)


def to_plain(config: DictConfig) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True, throw_on_missing=False)  # type: ignore[return-value]
