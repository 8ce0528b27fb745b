"""Errors cross process borders whole: workers raise them, and pickle is how they come back."""

from __future__ import annotations

import copy
import pickle

import pytest

from nemo_gym import errors

RAISED = [
    errors.ConfigError("needed, found, type"),
    errors.EngineUnavailableError("no engine"),
    errors.ImageError("no image", log_tail="the end"),
    errors.ServerStartError("died", server="agent", phase="ready", exit_code=3, oom_killed=True, log_tail="the end"),
    errors.EngineError("refused", status=409),
    errors.PortTakenError("port 11000", status=500),
    errors.NoAddressRangeError("no range", status=404),
    errors.TeardownError("left", left=["container x"]),
    errors.RolloutFailedError(
        "no reward", task_id="t", repeat=2, server="agent", status=502, body_tail="{}", results=[None, {"reward": 1.0}]
    ),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("carry", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickle", "copy"])
def test_an_error_arrives_as_it_left(error: errors.NemoGymError, carry: object) -> None:
    arrived = carry(error)  # type: ignore[operator]
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_every_error_is_tried() -> None:
    def kin(kind: type[errors.NemoGymError]) -> set[type[errors.NemoGymError]]:
        found = {kind}
        for child in kind.__subclasses__():
            found |= kin(child)
        return found

    own = {kind for kind in kin(errors.NemoGymError) if kind.__module__ == "nemo_gym.errors"}
    assert own - {type(error) for error in RAISED} == {errors.NemoGymError, errors.EngineNotFoundError}
