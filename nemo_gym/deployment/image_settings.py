"""The ``image:`` block of a server's config: an image from a registry in place of the server's own folder. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from nemo_gym.config.config_types import ServerInstance
from nemo_gym.containers.preflight import PullPolicy, WantedImage
from nemo_gym.containers.pulls import STALL_TIMEOUT_S
from nemo_gym.containers.references import parse_reference
from nemo_gym.errors import ConfigError

STALL_KEY = "image_pull_stall_timeout_seconds"


class ImageSettings(BaseModel):
    """``reference`` is what the registry calls it; ``pull_policy`` when to ask the registry for it.

    ``platform`` is what the image is for where that is not the engine's own platform: one that the engine emulates.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    reference: str
    pull_policy: PullPolicy = "missing"
    platform: str | None = None


def find_wanted_image(instance: ServerInstance) -> WantedImage | None:
    """The image that a server's config names; None when it is built from its folder.

    Raises ``ConfigError`` for a block that is wrong.
    """
    block = instance.settings.get("image")
    if block is None:
        return None
    where = f"The image settings of server {instance.name!r} are wrong: "
    if not isinstance(block, Mapping):
        raise ConfigError(f"{where}image must be a block, as in `image: {{reference: {block}}}`, and is {block!r}.")
    try:
        settings = ImageSettings.model_validate(dict(block))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, ('image', *e['loc'])))}: {e['msg']}" for e in error.errors())
        known = ", ".join(ImageSettings.model_fields)
        raise ConfigError(f"{where}{problems}. Known keys: {known}.") from error
    try:
        reference = parse_reference(settings.reference)
    except ConfigError as error:
        raise ConfigError(f"{where}image.reference: {error}") from error
    platform = settings.platform
    if platform is not None and re.fullmatch(r"[a-z0-9]+/[a-z0-9]+", platform) is None:
        raise ConfigError(
            f"{where}image.platform must be OS/ARCHITECTURE in the engine's words, as in linux/arm64, and is "
            f"{platform!r}."
        )
    return WantedImage(reference, settings.pull_policy, f"server {instance.name!r}", platform or "")


def pull_stall_timeout_s(config: Mapping[str, Any]) -> float:
    """After how many seconds without a byte a pull has failed. Raises ``ConfigError`` for no such number."""
    value = config.get(STALL_KEY)
    if value is None:
        return STALL_TIMEOUT_S
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{STALL_KEY} must be a number of seconds above 0, and is {value!r}.")
    return float(value)
