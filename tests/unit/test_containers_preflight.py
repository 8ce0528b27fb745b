"""Before any work: everything that stands in the way, at once."""

from __future__ import annotations

import dataclasses
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from nemo_gym.containers import preflight
from nemo_gym.containers.engine import EngineState, RemoteImage
from nemo_gym.containers.preflight import PullPolicy, WantedImage, check_before_work, named_platforms
from nemo_gym.containers.references import ImageReference, parse_reference
from nemo_gym.errors import ConfigError, EngineError
from tests.unit.fake_engine import LOCAL, FakeEngine

AMD64 = ("linux/amd64",)
Usage = namedtuple("Usage", "total used free")


def wanted(name: str, policy: PullPolicy = "missing") -> WantedImage:
    return WantedImage(parse_reference(f"host.invalid/{name}:1"), policy, f"server '{name}'")


def check(
    engine: FakeEngine,
    *images: WantedImage,
    builds: int = 0,
    config: Path | None = None,
    python: WantedImage | None = None,
) -> list[ImageReference]:
    environ = {"DOCKER_CONFIG": str(config or "/nowhere")}
    return check_before_work(engine, images, builds=builds, python=python, environ=environ)


def problem(
    engine: FakeEngine,
    *images: WantedImage,
    builds: int = 0,
    config: Path | None = None,
    python: WantedImage | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        check(engine, *images, builds=builds, config=config, python=python)
    return str(caught.value)


@pytest.fixture
def engine() -> FakeEngine:
    """Has one and registries have two, both for its own platform."""
    return FakeEngine(
        images={"host.invalid/one:1": "sha256:11"},
        remote_images={f"host.invalid/{name}:1": RemoteImage("sha256:aa", AMD64) for name in ("one", "two")},
    )


class TestWhatToPull:
    def test_by_policy(self, engine: FakeEngine) -> None:
        assert check(engine, wanted("one"), wanted("one", "never")) == []
        assert engine.calls["read_remote_image"] == 0
        assert check(engine, wanted("one", "always")) == [wanted("one").reference]
        assert check(engine, wanted("two"), wanted("two", "always")) == [wanted("two").reference]

    def test_never(self, engine: FakeEngine) -> None:
        message = problem(engine, wanted("two", "never"))
        assert message.startswith("The image host.invalid/two:1 of server 'two' is not on the engine")
        assert "`docker pull host.invalid/two:1`" in message

    def test_nothing_wanted_costs_one_question(self, engine: FakeEngine) -> None:
        assert check(engine) == []
        assert dict(engine.calls) == {"read_state": 1}


class TestEngine:
    @pytest.mark.parametrize("api", ["1.41", "1.50", "2.0"])
    def test_new_enough(self, engine: FakeEngine, api: str) -> None:
        engine.state = EngineState("x", api, "linux/amd64")
        assert check(engine) == []

    @pytest.mark.parametrize("api", ["1.40", "1.9"])
    def test_too_old(self, engine: FakeEngine, api: str) -> None:
        engine.state = EngineState("19.03.1", api, "linux/amd64")
        assert problem(engine).startswith(
            f"Docker engine 20.10 (API 1.41) or newer is needed, and this one is 19.03.1 (API {api})."
        )


class TestPlatform:
    def test_of_what_is_there(self, engine: FakeEngine) -> None:
        engine.platforms["host.invalid/one:1"] = "linux/arm64"
        assert problem(engine, wanted("one")).startswith(
            "The image host.invalid/one:1 of server 'one' is made for linux/arm64, and the engine runs linux/amd64."
        )

    def test_of_what_a_registry_has(self, engine: FakeEngine) -> None:
        engine.remote_images["host.invalid/two:1"] = RemoteImage("sha256:aa", ("linux/arm64", "windows/amd64"))
        assert "is made for linux/arm64, windows/amd64, and" in problem(engine, wanted("two"))
        engine.remote_images["host.invalid/two:1"] = RemoteImage("sha256:aa", ())  # some do not say
        assert check(engine, wanted("two")) == [wanted("two").reference]

    def test_one_that_the_engine_emulates(self, engine: FakeEngine) -> None:
        arm = {name: dataclasses.replace(wanted(name), platform="linux/arm64") for name in ("one", "two")}
        assert problem(engine, arm["one"]) == (
            "The image host.invalid/one:1 of server 'one' is made for linux/amd64, and its image.platform is "
            "linux/arm64. Correct that, or, where only the engine's copy is for another one, type `docker pull "
            "--platform linux/arm64 host.invalid/one:1`."
        )
        assert "its image.platform is linux/arm64" in problem(engine, arm["two"])
        engine.platforms["host.invalid/one:1"] = "linux/arm64"
        assert problem(engine, wanted("one")).endswith(
            "Where the engine emulates linux/arm64, say so: `image: {platform: linux/arm64}`."
        )
        engine.remote_images["host.invalid/two:1"] = RemoteImage("sha256:aa", ("linux/amd64", "linux/arm64"))
        assert check(engine, arm["one"], arm["two"]) == [arm["two"].reference]
        assert named_platforms([arm["one"], wanted("two")]) == {arm["one"].reference: "linux/arm64"}

    def test_two_at_once(self, engine: FakeEngine) -> None:
        arm = dataclasses.replace(wanted("two"), platform="linux/arm64", wanted_by="server 'arm'")
        engine.remote_images["host.invalid/two:1"] = RemoteImage("sha256:aa", ("linux/amd64", "linux/arm64"))
        assert problem(engine, wanted("two"), arm) == (
            "The image host.invalid/two:1 is wanted for the engine's own platform by server 'two' and for linux/arm64 "
            "by server 'arm'. Name the same image.platform in both, or each image by its own digest."
        )


class TestPython:
    """What builds stand on is looked at, and the build pulls it."""

    PYTHON = WantedImage(parse_reference("host.invalid/python:3"), "missing", "Python", advice="Make one.")

    def test_it_can_be_had(self, engine: FakeEngine) -> None:
        engine.remote_images["host.invalid/python:3"] = RemoteImage("sha256:aa", AMD64)
        assert check(engine, wanted("two"), python=self.PYTHON, builds=2) == [wanted("two").reference]

    def test_it_cannot(self, engine: FakeEngine) -> None:
        message = problem(engine, wanted("three"), python=self.PYTHON)
        assert message.startswith("2 things stand in the way:")
        assert message.endswith("The registry has no such tag or digest. Check the reference. Make one.")

    def test_for_another_platform(self, engine: FakeEngine) -> None:
        engine.remote_images["host.invalid/python:3"] = RemoteImage("sha256:aa", ("linux/arm64",))
        assert problem(engine, python=self.PYTHON).endswith("or build one there and push it. Make one.")

    def test_disk(self, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        engine.data_root = str(tmp_path)
        engine.remote_images["host.invalid/python:3"] = RemoteImage("sha256:aa", AMD64)
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Usage(10**10, 0, 550_000_000))
        assert "for 1 images to pull and 1 to build" in problem(engine, python=self.PYTHON, builds=1)


class TestRegistry:
    def test_refuses(self, engine: FakeEngine) -> None:
        assert problem(engine, wanted("three")) == (
            "The image host.invalid/three:1 of server 'three' cannot be pulled: manifest for host.invalid/three:1 not "
            "found: manifest unknown. The registry has no such tag or digest. Check the reference."
        )

    def test_for_the_moment_only(self, engine: FakeEngine) -> None:
        engine.errors["read_remote_image"] = [EngineError("toomanyrequests: slow down", status=429)]
        assert check(engine, wanted("two")) == [wanted("two").reference]

    def test_a_docker_config_that_cannot_be_read(self, engine: FakeEngine, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        assert problem(engine, wanted("two"), config=tmp_path).startswith(
            f"Docker's config {tmp_path}/config.json, where"
        )
        assert check(engine, wanted("one"), config=tmp_path) == []
        (tmp_path / "config.json").write_text("[]")
        assert "it is no JSON object" in problem(engine, wanted("two"), config=tmp_path)
        (tmp_path / "config.json").write_text("{}")
        assert check(engine, wanted("two"), config=tmp_path) == [wanted("two").reference]


class TestDisk:
    @pytest.fixture(autouse=True)
    def free(self, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """550 MB."""
        engine.data_root = str(tmp_path)
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Usage(10**10, 0, 550_000_000))

    def test_enough(self, engine: FakeEngine) -> None:
        assert check(engine, wanted("two")) == [wanted("two").reference]
        assert check(engine, builds=5) == []
        assert check(engine, wanted("one", "always"), builds=5) == [wanted("one").reference]  # is there already

    def test_too_little(self, engine: FakeEngine) -> None:
        message = problem(engine, wanted("two"), builds=1)
        assert message.startswith("About 0.6 GB are needed for 1 images to pull and 1 to build, and the engine's disk")
        assert "has 0.6 GB left. See `docker system df`" in message

    def test_not_judged(self, engine: FakeEngine) -> None:
        engine.data_root = "/no/such/folder"
        assert check(engine, builds=50) == []
        engine.data_root = ""
        assert check(engine, builds=50) == []
        engine.endpoint = dataclasses.replace(LOCAL, is_local=False)
        engine.data_root = "/"
        assert check(engine, builds=50) == []


def test_everything_at_once(engine: FakeEngine, tmp_path: Path) -> None:
    engine.state = EngineState("19.03.1", "1.40", "linux/amd64")
    engine.platforms["host.invalid/one:1"] = "linux/arm64"
    engine.data_root = str(tmp_path)
    builds = shutil.disk_usage(tmp_path).free // preflight.BUILD_BYTES + 1
    message = problem(engine, wanted("one"), wanted("three"), wanted("two", "never"), wanted("one"), builds=builds)
    first, *problems = message.splitlines()
    assert first == "5 things stand in the way:"
    for line, beginning in zip(
        problems, ("Docker engine", "The image", "The image", "The image", "About"), strict=True
    ):
        assert line.startswith(f"- {beginning}")
