"""What is told of images under way, to whoever shows it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nemo_gym.containers import builds, pulls
from nemo_gym.containers.build_context import BuildContext, ContextFile
from nemo_gym.containers.build_network import BuildNetwork
from nemo_gym.containers.engine import PullStep
from nemo_gym.containers.image_progress import ImageProgress, Telling, is_observed, observed_by
from nemo_gym.containers.pulls import pull_images
from nemo_gym.containers.references import parse_reference
from nemo_gym.errors import ImageError
from tests.unit.fake_engine import FakeEngine

ONE = "host.invalid/one:1"


def told(seen: list[ImageProgress]) -> list[tuple[str, str, bool]]:
    return [(progress.doing, progress.how_far, progress.has_ended) for progress in seen]


def test_only_while_somebody_looks() -> None:
    seen: list[ImageProgress] = []
    assert not is_observed()
    with Telling("a:1", "a", "building") as telling:
        with observed_by(seen.append):
            assert is_observed()
            telling.tell("step 1/2")
        telling.tell("step 2/2")
    assert seen == [ImageProgress("a:1", "a", "building", "step 1/2")]
    assert not is_observed()


def test_the_end_of_what_fails_is_told() -> None:
    seen: list[ImageProgress] = []
    with observed_by(seen.append), pytest.raises(ImageError), Telling("a:1", "a", "pulling"):
        raise ImageError("no")
    assert told(seen) == [("pulling", "", False), ("pulling", "", True)]


class TestPulls:
    @pytest.fixture
    def engine(self, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
        monkeypatch.setattr(pulls, "_backoff", lambda state: 0.001)
        monkeypatch.setattr(pulls, "_TICK_S", 0.0)
        steps = [PullStep("l1", "Downloading", 500_000, 2_000_000), PullStep("l1", "Pull complete")]
        return FakeEngine(pullable={ONE}, pull_steps={ONE: steps})

    def test_bytes_and_share(self, engine: FakeEngine) -> None:
        seen: list[ImageProgress] = []
        with observed_by(seen.append):
            pull_images(engine, [parse_reference(ONE)])
        assert {(progress.image, progress.repository) for progress in seen} == {(ONE, "host.invalid/one")}
        assert told(seen) == [
            ("pulling", "", False),
            ("pulling", "25 % (0.5 of 2.0 MB)", False),
            ("pulling", "100 % (2.0 of 2.0 MB)", False),
            ("pulling", "", True),
        ]

    def test_waiting(self, engine: FakeEngine) -> None:
        engine.pull_steps[ONE] = []
        engine.pull_errors[ONE] = [ImageError("received unexpected HTTP status: 503 x", log_tail="")]
        seen: list[ImageProgress] = []
        with observed_by(seen.append):
            pull_images(engine, [parse_reference(ONE)])
        assert [progress.how_far for progress in seen] == ["", "waits 0 s for the registry", ""]


class TestBuilds:
    def test_steps(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(builds, "_PROGRESS_EVERY_S", -1.0)
        context = BuildContext("nemo-gym/one", {"Dockerfile": ContextFile(b"x")})
        engine = FakeEngine(build_lines=["Step 1/2 : FROM x\n", " ---> 1\n", "\x1b[0mStep 2/2 : RUN y\n"])
        seen: list[ImageProgress] = []
        with (
            caplog.at_level(logging.INFO),
            observed_by(seen.append),
            builds.Builds(engine, tmp_path / "locks", tmp_path / "logs", BuildNetwork()) as under_way,
        ):
            under_way.run([builds.Build(context, "nemo-gym/one:1", {}, "sha256:aa")])
        assert {(progress.image, progress.repository) for progress in seen} == {("nemo-gym/one:1", "nemo-gym/one")}
        assert [progress.how_far for progress in seen] == ["", "step 1/2", "step 2/2", ""]
        assert "step 1 of 2" not in caplog.text
