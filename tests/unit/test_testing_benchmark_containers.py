"""Benchmarks as values, the process that serves one, and what several tests share. No engine answers here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError, EngineUnavailableError, NemoGymError
from nemo_gym.testing import BenchmarkContainers, SharedBenchmarks
from nemo_gym.testing.serving_process import ServingProcess

OVERRIDES = {"policy_base_url": "http://192.0.2.1/v1", "policy_api_key": "secret", "policy_model_name": "m"}


class TestBenchmarkContainers:
    def test_each_with_gives_another_value(self) -> None:
        plain = BenchmarkContainers("gsm8k")
        changed = plain.with_model_type("replay_model").with_override("a.b", 1).with_override("a.c", [2])
        assert (plain.model_type, plain.overrides) == ("openai_model", {})
        assert (changed.benchmark, changed.model_type) == ("gsm8k", "replay_model")
        assert changed.overrides == {"a": {"b": 1, "c": [2]}}
        assert changed.with_overrides({"a": {"b": 5}}).overrides == {"a": {"b": 5, "c": [2]}}

    def test_nothing_is_set_in_place(self) -> None:
        with pytest.raises(FrozenInstanceError):
            BenchmarkContainers("gsm8k").benchmark = "other"  # type: ignore[misc]
        given: dict[str, Any] = {"a": {"b": 1}}
        containers = BenchmarkContainers("gsm8k", overrides=given)
        given["a"]["b"] = 2
        assert containers.overrides == {"a": {"b": 1}}

    def test_the_same_request_is_equal_whatever_the_order_of_its_keys(self) -> None:
        one = BenchmarkContainers("gsm8k", overrides={"a": 1, "b": 2})
        other = BenchmarkContainers("gsm8k").with_override("b", 2).with_override("a", 1)
        assert one == other
        assert hash(one) == hash(other)
        assert one.key == other.key
        assert len({one.key, one.with_override("a", 2).key, one.with_model_type("x").key}) == 3

    def test_secrets_are_not_shown(self) -> None:
        assert "secret" not in repr(BenchmarkContainers("gsm8k", overrides=OVERRIDES))

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda: BenchmarkContainers(""), "benchmark must be a name, as in `gym list`; found ''"),
            (lambda: BenchmarkContainers("a", 3), "model_type must be a name.*found 3"),
            (lambda: BenchmarkContainers("a", overrides={"a.b": 1}), r"a\.b"),
            (lambda: BenchmarkContainers("a").with_override("a..b", 1), r"names with dots between; found 'a\.\.b'"),
            (lambda: BenchmarkContainers("a").with_override("a", {1}), "Write a list"),
            (lambda: BenchmarkContainers("a").with_overrides([1]), "must be a nested dict"),
        ],
    )
    def test_what_cannot_be_is_refused(self, make: Any, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            make()


class TestServingProcess:
    """What the child says when it cannot serve, and that it ends with its parent."""

    def test_an_error_arrives_as_it_was_raised(self) -> None:
        process = ServingProcess("truthfulqa_mc", "openai_model", {})
        with pytest.raises(ConfigError, match="Did you mean truthfulqa_mc1"):
            process.start()
        assert process.pid is None

    def test_errors_keep_their_kind(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
        with pytest.raises(EngineUnavailableError, match="Check the address in DOCKER_HOST"):
            BenchmarkContainers("truthfulqa_mc1").with_overrides(OVERRIDES).__enter__()

    def test_a_child_that_dies_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(NemoGymError, match="ended with exit code 1; see stderr"):
            ServingProcess("truthfulqa_mc1", "openai_model", {}).start()

    def test_stopping_what_was_never_started_is_fine(self) -> None:
        ServingProcess("truthfulqa_mc1", "openai_model", {}).stop()

    @pytest.mark.parametrize("end", ["input", "parent"])
    def test_the_child_ends_when_it_is_let_go(self, end: str) -> None:
        """While it waits, a SIGINT of nobody's terminal included; ``parent``: the pipe is held open by another."""
        child = (
            "import os, sys, threading, time\n"
            "from nemo_gym.testing import serving_process\n"
            "parent = int(sys.argv[1])\n"
            "watch = threading.Thread(target=serving_process._interrupt_when_let_go, args=(parent,), daemon=True)\n"
            "try:\n    print('watching', flush=True)\n    watch.start()\n    time.sleep(60)\n"
            "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
        )
        parent = os.getpid() if end == "input" else 1 << 22
        with subprocess.Popen(
            [sys.executable, "-c", child, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "watching\n"
            if end == "input":
                assert process.poll() is None
                process.stdin.close()
            assert process.stdout.readline() == "interrupted\n"
            assert process.wait(10) == 0

    def test_a_request_that_never_comes_ends_it_too(self) -> None:
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb") as said:
            command = [sys.executable, "-m", "nemo_gym.testing.serving_process", str(write_end), str(os.getpid())]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[write_end])
            os.close(write_end)
            assert said.read() == b""
            assert process.wait(10) == 0


@dataclass
class Fake:
    """Stands for containers: notes when it is entered and left."""

    key: str
    events: list[str]
    error: BaseException | None = None
    stop_error: Exception | None = None
    served: str = field(init=False)

    def __enter__(self) -> Any:
        self.events.append(f"start {self.key}")
        if self.error is not None:
            raise self.error
        return f"served {self.key}"

    def __exit__(self, *_: object) -> None:
        self.events.append(f"stop {self.key}")
        if self.stop_error is not None:
            raise self.stop_error


class TestSharing:
    @pytest.fixture
    def events(self) -> list[str]:
        return []

    def test_the_same_request_is_served_once(self, events: list[str]) -> None:
        shared = SharedBenchmarks()
        for _ in range(3):
            with shared.served(Fake("a", events)) as served:  # type: ignore[arg-type]
                assert served == "served a"  # type: ignore[comparison-overlap]
        shared.close()
        shared.close()
        assert events == ["start a", "stop a"]

    def test_the_one_that_is_idle_longest_makes_room(self, events: list[str]) -> None:
        shared = SharedBenchmarks(at_once=2)
        for key in ("a", "b", "a", "c", "a", "b"):
            with shared.served(Fake(key, events)):  # type: ignore[arg-type]
                pass
        assert events == ["start a", "start b", "stop b", "start c", "stop c", "start b"]
        shared.close()
        assert sorted(events[6:]) == ["stop a", "stop b"]

    def test_what_is_in_use_stays(self, events: list[str]) -> None:
        shared = SharedBenchmarks(at_once=1)
        with (
            shared.served(Fake("a", events)),  # type: ignore[arg-type]
            shared.served(Fake("b", events)),  # type: ignore[arg-type]
            shared.served(Fake("a", events)),  # type: ignore[arg-type]
        ):
            assert events == ["start a", "start b"]
        with shared.served(Fake("c", events)):  # type: ignore[arg-type]
            assert events == ["start a", "start b", "stop b", "stop a", "start c"]

    def test_what_could_not_be_served_is_not_tried_again(self, events: list[str]) -> None:
        shared = SharedBenchmarks()
        for _ in range(2):
            with (
                pytest.raises(ConfigError, match="no engine"),
                shared.served(Fake("a", events, ConfigError("no engine"))),
            ):  # type: ignore[arg-type]
                pass
        assert events == ["start a"]

    def test_a_ctrl_c_is_no_property_of_the_request(self, events: list[str]) -> None:
        shared = SharedBenchmarks()
        with pytest.raises(KeyboardInterrupt), shared.served(Fake("a", events, KeyboardInterrupt())):  # type: ignore[arg-type]
            pass
        with shared.served(Fake("a", events)):  # type: ignore[arg-type]
            pass
        assert events == ["start a", "start a"]

    def test_all_are_stopped_although_one_fails_to(self, events: list[str]) -> None:
        shared = SharedBenchmarks()
        with (
            shared.served(Fake("a", events)),  # type: ignore[arg-type]
            shared.served(Fake("b", events, stop_error=NemoGymError("left behind"))),  # type: ignore[arg-type]
        ):
            pass
        with pytest.raises(NemoGymError, match="left behind"):
            shared.close()
        assert sorted(events[2:]) == ["stop a", "stop b"]

    def test_fewer_than_one_at_once_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="found 0"):
            SharedBenchmarks(at_once=0)


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Each child that a test started has ended with it."""
    yield
    deadline = time.monotonic() + 5
    while True:
        children = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
        )
        left = [line for line in children.stdout.splitlines() if "serving_process" in line]
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
