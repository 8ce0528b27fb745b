"""Pulls: what is tried again and when, what stalls, what arrived, and how a giving-up ends them all."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from nemo_gym.containers import pulls
from nemo_gym.containers.engine import PullStep
from nemo_gym.containers.pulls import Transfer, pull_images
from nemo_gym.containers.references import parse_reference
from nemo_gym.errors import ImageError
from tests.unit.fake_engine import FakeEngine

ONE = parse_reference("host.invalid/one:1")
TWO = parse_reference("host.invalid/two:1")
PINNED = parse_reference("host.invalid/one@sha256:" + "0a" * 32)


def failed(said: str) -> ImageError:
    return ImageError(f"pulling x failed: {said}\nEnd of the log:\n(empty)", log_tail="")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Everything can be pulled; no registry names a time, and waits are short."""
    monkeypatch.setattr(pulls, "ask_retry_after", lambda reference: None)
    monkeypatch.setattr(pulls, "_backoff", lambda state: 0.001 * state.attempt_number)
    return FakeEngine(pullable={str(ONE), str(TWO), str(PINNED)})


def refused(engine: FakeEngine, *references: object, stall_timeout_s: float = 10.0) -> str:
    with pytest.raises(ImageError) as caught:
        pull_images(engine, references, stall_timeout_s=stall_timeout_s)  # type: ignore[arg-type]
    return str(caught.value)


def test_each_once(engine: FakeEngine) -> None:
    pull_images(engine, [ONE, TWO, ONE])
    assert engine.calls["pull_image"] == 2
    assert set(engine.images) == {str(ONE), str(TWO)}
    assert all(pull.closed.is_set() for pull in engine.pulls)
    pull_images(engine, [])


class TestTryingAgain:
    def test_what_passes(self, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
        engine.pull_errors[str(ONE)] = [failed("received unexpected HTTP status: 503 x"), failed("unexpected EOF")]
        with caplog.at_level(logging.INFO):
            pull_images(engine, [ONE])
        assert engine.calls["pull_image"] == 3
        assert "503 x; trying again in 0.0 s" in caplog.text

    def test_not_before_the_registry_says(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        engine.pull_errors[str(ONE)] = [failed("toomanyrequests: slow down")]
        monkeypatch.setattr(pulls, "ask_retry_after", lambda reference: 0.3 if reference == ONE else None)
        began = time.monotonic()
        pull_images(engine, [ONE])
        assert time.monotonic() - began >= 0.3
        engine.pull_errors[str(TWO)] = [failed("toomanyrequests: retry-after: 200ms, allowed: 3/minute")]
        began = time.monotonic()
        pull_images(engine, [TWO])
        assert 0.2 <= time.monotonic() - began < 20

    def test_waiting_is_no_stall(self, engine: FakeEngine) -> None:
        engine.pull_errors[str(ONE)] = [failed("toomanyrequests: retry-after: 500ms")]
        pull_images(engine, [ONE], stall_timeout_s=0.2)

    def test_more_patience_than_people_have(self, engine: FakeEngine) -> None:
        engine.pull_errors[str(ONE)] = [failed("toomanyrequests: retry-after: 2h")]
        assert refused(engine, ONE).endswith(
            "The registry limits how much is pulled. Wait, or `docker login` for a higher limit.\n"
            "It asks to be left alone for 7200 seconds."
        )
        assert engine.calls["pull_image"] == 1

    def test_not_for_ever(self, engine: FakeEngine) -> None:
        engine.pull_errors[str(ONE)] = [failed("unexpected EOF")] * 20
        assert "is in trouble. Try again later" in refused(engine, ONE)
        assert engine.calls["pull_image"] == 6

    @pytest.mark.parametrize(
        ("said", "advice"),
        [
            ("unauthorized: authentication required", "`docker login host.invalid`"),
            ("manifest for x not found: manifest unknown", "no such tag or digest"),
            ("write x: no space left on device", "docker system df"),
            ("something new", "something new"),
        ],
    )
    def test_never(self, engine: FakeEngine, said: str, advice: str) -> None:
        engine.pull_errors[str(ONE)] = [failed(said)]
        message = refused(engine, ONE)
        assert said in message
        assert advice in message
        assert "(empty)" not in message
        assert engine.calls["pull_image"] == 1


class TestStalls:
    def test_silence_ends_it(self, engine: FakeEngine) -> None:
        engine.hang_pull = str(ONE)
        engine.pull_steps[str(ONE)] = [PullStep("aa", "Downloading", 5_000_000, 10_000_000)]
        message = refused(engine, ONE, stall_timeout_s=0.2)
        assert message.startswith(
            f"Pulling {ONE} stalled at 50 % (5.0 of 10.0 MB, 0 of 1 layers): nothing arrived for 0.2 seconds."
        )
        assert str(ONE) not in engine.images

    def test_a_slow_one_goes_on(self, engine: FakeEngine) -> None:
        def slow() -> Iterator[PullStep]:
            for number in range(1, 9):
                time.sleep(0.1)
                yield PullStep("aa", "Downloading", number, 8)

        engine.pull_steps[str(ONE)] = slow()  # type: ignore[assignment]
        pull_images(engine, [ONE], stall_timeout_s=0.4)

    def test_counting_down_is_silence(self, engine: FakeEngine) -> None:
        ended = threading.Event()

        def counting() -> Iterator[PullStep]:
            while not engine.pulls or not engine.pulls[0].closed.is_set():
                time.sleep(0.02)
                yield PullStep("aa", "Retrying in 5 seconds")
            ended.set()

        engine.pull_steps[str(ONE)] = counting()  # type: ignore[assignment]
        assert "stalled at 0 %" in refused(engine, ONE, stall_timeout_s=0.2)
        assert ended.is_set()


class TestGivingUp:
    def test_the_first_failure_ends_the_others(self, engine: FakeEngine) -> None:
        engine.hang_pull = str(ONE)
        engine.pull_errors[str(TWO)] = [failed("manifest unknown")]
        assert "manifest unknown" in refused(engine, ONE, TWO)
        assert all(pull.closed.is_set() for pull in engine.pulls)
        assert engine.images == {}

    def test_ctrl_c(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        engine.hang_pull = str(ONE)

        def interrupted(*args: object, **kwargs: object) -> object:
            assert engine.hanging.wait(10)
            raise KeyboardInterrupt

        monkeypatch.setattr(pulls, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull_images(engine, [ONE])
        assert engine.pulls[0].closed.is_set()
        assert not [thread for thread in threading.enumerate() if "nemo-gym-pull" in thread.name]

    def test_while_it_waits_for_the_registry(self, engine: FakeEngine) -> None:
        engine.pull_errors[str(ONE)] = [failed("toomanyrequests: retry-after: 60s")]
        engine.pull_errors[str(TWO)] = [failed("manifest unknown")]
        began = time.monotonic()
        refused(engine, ONE, TWO)
        assert time.monotonic() - began < 20


class TestWhatArrived:
    def test_the_digest_asked_for(self, engine: FakeEngine) -> None:
        pull_images(engine, [PINNED])
        assert str(PINNED) in engine.images

    def test_another(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        engine.repo_digests = {f"sha256:{0:012x}{0:052x}": ("host.invalid/one@sha256:" + "0b" * 32,)}
        message = refused(engine, PINNED)
        assert message.startswith(f"{PINNED} was pulled, and what arrived is another image")
        assert "sha256:0b0b" in message


class TestProgress:
    def transfer(self, *steps: PullStep) -> Transfer:
        transfer = Transfer(ONE, 0.0)
        for number, step in enumerate(steps, 1):
            transfer.take(step, float(number))
        return transfer

    def test_for_people(self) -> None:
        transfer = self.transfer(
            PullStep("1", "Pulling from one"),
            PullStep("aa", "Already exists"),
            PullStep("bb", "Pulling fs layer"),
            PullStep("cc", "Downloading", 1_000_000, 4_000_000),
            PullStep("dd", "Downloading", 500_000, 2_000_000),
            PullStep("dd", "Download complete"),
        )
        assert transfer.progress() == "50 % (3.0 of 6.0 MB, 1 of 4 layers)"
        assert self.transfer().progress() == "0 % (0.0 of 0.0 MB, 0 of 0 layers)"

    def test_movement(self) -> None:
        assert self.transfer(PullStep("aa", "Downloading", 1, 9), PullStep("aa", "Downloading", 1, 9)).moved_at == 1.0
        assert self.transfer(PullStep("aa", "Downloading", 1, 9), PullStep("aa", "Downloading", 2, 9)).moved_at == 2.0
        assert (
            self.transfer(PullStep("aa", "Downloading", 1, 9), PullStep("aa", "Retrying in 1 second")).moved_at == 1.0
        )
        assert self.transfer(PullStep("aa", "Waiting")).moved_at == 0.0
        assert self.transfer(PullStep("aa", "Extracting", 1, 9), PullStep("aa", "Pull complete")).moved_at == 2.0

    def test_told_every_few_seconds(
        self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(pulls, "REPORT_INTERVAL_S", 0.0)
        engine.hang_pull = str(ONE)
        engine.pull_steps[str(ONE)] = [PullStep("aa", "Downloading", 1_000_000, 4_000_000)]
        with caplog.at_level(logging.INFO):
            refused(engine, ONE, stall_timeout_s=0.3)
        assert f"pulling {ONE}: 25 % (1.0 of 4.0 MB, 0 of 1 layers)" in caplog.text


class TestPlatform:
    def test_it_is_asked_for(self, engine: FakeEngine) -> None:
        pull_images(engine, [ONE, TWO], platforms={ONE: "linux/arm64"})
        assert engine.platforms == {str(ONE): "linux/arm64"}

    def test_another_arrives(self, engine: FakeEngine) -> None:
        engine.platforms[str(ONE)] = "linux/amd64"
        with pytest.raises(ImageError) as caught:
            pull_images(engine, [ONE], platforms={ONE: "linux/arm64"})
        assert str(caught.value) == (
            "host.invalid/one:1 was pulled for linux/arm64, as its image.platform says, and what arrived is for "
            "linux/amd64. Name an image that there is for linux/arm64, or correct image.platform."
        )
