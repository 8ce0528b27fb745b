"""What the server's own process knows of scoring: only the workers import reasoning-gym, which is large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCORERS = "images.resources_servers.reasoning_gym.scorers"


class UnknownGeneratorError(ValueError):
    """No such generator, or one that does not take these parameters."""


def score(generator: str, parameters: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """``scorers.score_answer``, for a worker to run."""
    from images.resources_servers.reasoning_gym.scorers import score_answer

    return score_answer(generator, parameters, entry, answer)
