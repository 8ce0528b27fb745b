"""The ``image:`` block of a server: typed, and what is wrong with it said."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.config.config_types import ServerInstance
from nemo_gym.containers.preflight import WantedImage
from nemo_gym.containers.references import parse_reference
from nemo_gym.deployment.image_settings import find_wanted_image, pull_stall_timeout_s
from nemo_gym.errors import ConfigError


def find(image: Any) -> WantedImage | None:
    return find_wanted_image(ServerInstance("mine", "resources_servers", "mcqa", {"image": image}))


def test_none() -> None:
    assert find(None) is None
    assert find_wanted_image(ServerInstance("mine", "resources_servers", "mcqa", {})) is None


def test_reference_and_policy() -> None:
    reference = parse_reference("host:5000/a/b:1")
    assert find({"reference": "host:5000/a/b:1"}) == WantedImage(reference, "missing", "server 'mine'")
    assert find({"reference": "host:5000/a/b:1", "pull_policy": "never"}) == WantedImage(
        reference, "never", "server 'mine'"
    )
    assert find({"reference": "host:5000/a/b:1", "platform": "linux/arm64"}) == WantedImage(
        reference, "missing", "server 'mine'", "linux/arm64"
    )


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("a/b:1", "image must be a block, as in `image: {reference: a/b:1}`, and is 'a/b:1'."),
        ({}, "image.reference: Field required. Known keys: reference, pull_policy, platform."),
        ({"reference": 3}, "image.reference: Input should be a valid string"),
        (
            {"reference": "a", "pull_policy": "sometimes"},
            "image.pull_policy: Input should be 'missing', 'always' or 'never'",
        ),
        ({"reference": "a", "platform": 1}, "image.platform: Input should be a valid string"),
        (
            {"reference": "a", "platform": "arm64"},
            "image.platform must be OS/ARCHITECTURE in the engine's words, as in linux/arm64, and is 'arm64'.",
        ),
        ({"reference": "a", "platform": ""}, "image.platform must be OS/ARCHITECTURE"),
        ({"reference": "a", "tag": "b"}, "image.tag: Extra inputs are not permitted"),
        (
            {"reference": "Team/Mine:1"},
            "image.reference: 'Team/Mine:1' is no image reference: the name may hold no capitals",
        ),
        ({"reference": "a b"}, "image.reference: 'a b' is no image reference: it holds a space"),
        ({"reference": "a//b"}, "image.reference: 'a//b' is no image reference: a '/' has nothing before or after it"),
    ],
)
def test_what_is_wrong(image: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(image)
    assert str(caught.value).startswith(f"The image settings of server 'mine' are wrong: {why}")


def test_stall_timeout() -> None:
    assert pull_stall_timeout_s({}) == 60.0
    assert pull_stall_timeout_s({"image_pull_stall_timeout_seconds": 5}) == 5.0
    for value in (0, -1, True, "5", float("nan")):
        with pytest.raises(ConfigError, match="image_pull_stall_timeout_seconds must be a number of seconds above 0"):
            pull_stall_timeout_s({"image_pull_stall_timeout_seconds": value})
