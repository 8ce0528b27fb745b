"""Puts the root Dockerfile into the wheel. (``sources`` in pyproject.toml maps folders only.)"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DockerfileHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":  # an editable install reads it from the checkout
            build_data["force_include"]["Dockerfile"] = "nemo_gym/_data/Dockerfile"
