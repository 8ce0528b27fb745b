"""The types that a config is made of."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nemo_gym.config.instances import (
    DOMAINS,
    POLICY_KEYS,
    POLICY_MODEL,
    RESERVED_KEYS,
    SERVER_TYPES,
    ServerInstance,
    ServerRef,
    find_server_refs,
)
from nemo_gym.config.server_entries import parse_server_instances

__all__ = [
    "DOMAINS",
    "POLICY_KEYS",
    "POLICY_MODEL",
    "RESERVED_KEYS",
    "SERVER_TYPES",
    "BaseNeMoGymCLIConfig",
    "BaseServerConfig",
    "DatasetConfig",
    "ServerInstance",
    "ServerRef",
    "find_server_refs",
    "parse_server_instances",
]


class BaseServerConfig(BaseModel):
    """Where a server answers. ``token``, where a server asks for one, is kept out of every display."""

    host: str
    port: int
    num_workers: int | None = None
    token: str | None = Field(default=None, repr=False)


class BaseNeMoGymCLIConfig(BaseModel):
    """What one command reads from a resolved config; keys that belong to others are ignored."""

    model_config = ConfigDict(extra="ignore")


def _text_of_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


_PathText = Annotated[str, Field(min_length=1), BeforeValidator(_text_of_path)]


class DatasetConfig(BaseModel):
    """One entry of a server's ``datasets``; keys beyond these are kept as they are.

    ``type: benchmark`` marks what a benchmark runs. ``jsonl_fpath`` is where its prepare script writes,
    ``prompt_config`` the template for rows that come without a finished input. A ``Path`` is kept as its text.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    type: str
    jsonl_fpath: _PathText
    prepare_script: _PathText | None = None
    prompt_config: _PathText | None = None
    num_repeats: int = Field(default=1, ge=1)
    prepare_dependencies: list[str] = Field(default_factory=list)

    def extras(self) -> dict[str, Any]:
        """The keys of this entry that this package gives no meaning to."""
        return dict(self.model_extra or {})
