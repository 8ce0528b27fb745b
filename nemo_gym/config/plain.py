"""A config as plain Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def to_plain(config: DictConfig) -> dict[str, Any]:
    """``config`` as plain dicts, lists and values, interpolations resolved. What is still to be set is ``"???"``."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    if not isinstance(plain, dict):
        raise ConfigError(f"A config is a dict at its top level; found {type(plain).__name__}.")
    return {str(key): value for key, value in plain.items()}
