"""``gym images`` on the engine in memory: what is built, shown, pushed, locked and removed."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.cli.run_servers import images_recorded
from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.containers import images
from nemo_gym.containers.build_network import BuildNetwork
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine import RemoteImage
from nemo_gym.containers.image_lock import parse_lock
from nemo_gym.containers.images import PYTHON_IMAGE
from nemo_gym.deployment import image_commands
from nemo_gym.deployment.image_commands import entries, push, wanted_contexts
from nemo_gym.deployment.locked_images import ensure_locked_images
from nemo_gym.deployment.running import RunningSession
from nemo_gym.deployment.topology import Topology, build_topology
from nemo_gym.errors import ConfigError, EngineError
from tests.unit.fake_engine import FakeEngine, FakeLog

PYTHON_ID = "sha256:" + "ab" * 32
IMAGE = {"reference": "r.example/x:1"}
OURS = "base", "registry", "resources_servers/mine"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """No image but Python, one image folder of the caller's, and a small checkout's worth of shipped ones."""
    fake = FakeEngine(images={PYTHON_IMAGE: PYTHON_ID})
    monkeypatch.setattr(DockerEngine, "connect", lambda environ: fake)
    monkeypatch.setattr(images, "find_build_network", lambda environ: BuildNetwork())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(image_commands, "search_roots", lambda dirs: [tmp_path, *map(Path, dirs)])
    for variable in ("NEMO_GYM_PYTHON_IMAGE", "NEMO_GYM_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    app(tmp_path).parent.mkdir(parents=True)
    app(tmp_path).write_text("1")
    return fake


def app(root: Path) -> Path:
    return root / "images" / "resources_servers" / "mine" / "app.py"


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["images", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["images", *words]) == 2
    return capsys.readouterr().err


class TestBuildAndList:
    def test_missing_then_built(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        listed = as_json(capsys, "list")
        assert [(entry["name"], entry["state"]) for entry in listed] == [(name, "missing") for name in OURS]
        assert listed[0]["reference"].startswith("nemo-gym/base:")
        assert listed[1]["reference"] is None
        assert engine.builds == []
        built = as_json(capsys, "build")
        assert [(entry["name"], entry["state"]) for entry in built] == [(name, "present") for name in OURS]
        assert [entry["own_bytes"] for entry in built] == [None, 1000, 1000]
        assert built[2]["labels"]["nemo-gym.repository"] == "nemo-gym/resources-servers/mine"
        assert as_json(capsys, "build") == built
        assert len(engine.builds) == 3

    def test_no_python(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.images.clear()
        assert [entry["reference"] for entry in as_json(capsys, "list")] == [None, None, None]
        assert f"The image {PYTHON_IMAGE} of Python, which every server image stands on, cannot" in refused(
            capsys, "build"
        )
        assert engine.calls["pull_image"] == 0

    def test_a_table(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert main(["images", "build"]) == 0
        app(tmp_path).write_text("2")
        assert main(["images", "list"]) == 0
        lines = capsys.readouterr().out.rpartition("own MB")[2].splitlines()
        (mine,) = [line for line in lines if line.startswith("resources_servers/mine")]
        assert "missing" in mine
        (old,) = [line for line in lines if line.startswith("resources-servers/mine")]
        assert "superseded" in old

    def test_options_without_a_benchmark(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert "leave the other options out" in refused(capsys, "build", "--model-type", "openai_model")

    def test_of_a_config(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        foreign = {"resources_servers": {"theirs": {"entrypoint": "app.py", "domain": "other", "image": IMAGE}}}
        mine = {"resources_servers": {"mine": {"entrypoint": "app.py", "domain": "other"}}}
        (tmp_path / "c.yaml").write_text(json.dumps({"a": mine, "b": foreign}))
        listed = as_json(capsys, "list", "--config", str(tmp_path / "c.yaml"))
        assert [entry["name"] for entry in listed] == [*OURS, "r.example/x:1"]
        engine.pullable.add("r.example/x:1")
        engine.remote_images["r.example/x:1"] = RemoteImage("sha256:" + "1" * 64, ("linux/amd64",))
        built = as_json(capsys, "build", "--config", str(tmp_path / "c.yaml"))
        assert [(entry["name"], entry["state"]) for entry in built][-1] == ("r.example/x:1", "present")


class TestPush:
    def test_pushed_by_digest(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        pushed = as_json(capsys, "push", "r.example:5000/team/")
        assert pushed["registry"] == f"r.example:5000/team/nemo-gym/registry@sha256:{'d1' * 32}"
        assert set(pushed) == set(OURS)
        assert engine.calls["push_image"] == 3

    def test_refused(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        assert "no place to push" in refused(capsys, "push", "https://R.example")
        assert engine.builds == []
        engine.fail_push = "r.example/"
        assert "denied" in refused(capsys, "push", "r.example")
        engine.fail_push, engine.push_lines = "\0", 1
        assert "did not say under which digest" in refused(capsys, "push", "r.example")

    def test_one_that_fails_ends_the_others(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        engine.fail_push, engine.hang_push = "r.example/nemo-gym/base", "r.example/nemo-gym/resources-servers"
        assert "denied" in refused(capsys, "push", "r.example")
        assert [log.was_given_up for log in pushes(engine)] == [False, False, True]

    def test_ctrl_c_ends_them(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
        def interrupt() -> None:
            while len(pushes(engine)) < len(OURS):
                time.sleep(0.01)
            time.sleep(0.1)  # it waits for them, and starts none any more
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        as_json(capsys, "build")
        built = entries(engine, wanted_contexts(None))
        engine.hang_push = "r.example/"
        user = threading.Thread(target=interrupt)
        user.start()
        with pytest.raises(KeyboardInterrupt):
            push(engine, built, "r.example")
        user.join()
        assert any(log.was_given_up for log in pushes(engine))
        assert engine.repo_digests == {}


def pushes(engine: FakeEngine) -> list[FakeLog]:
    """In the order of the images' names."""
    return [engine.logs[reference] for reference in sorted(engine.logs) if reference.startswith("r.example/")]


class TestPrune:
    def test_what_no_folder_needs(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        as_json(capsys, "push", "r.example")
        (first,) = [tag for tag in engine.images if tag.startswith("nemo-gym/resources-servers/mine:")]
        engine.images["somebody/elses:1"] = "sha256:" + "ef" * 32
        engine.images["r.example/pulled:1"] = "sha256:" + "cd" * 32
        engine.image_labels["sha256:" + "cd" * 32] = {"nemo-gym.context": "ours, and pulled"}
        app(tmp_path).write_text("2")
        as_json(capsys, "build")
        before = set(engine.images)
        pushed = f"r.example/nemo-gym/resources-servers/mine@sha256:{'d1' * 32}"
        old = {first, f"r.example/{first}", pushed}
        shown = as_json(capsys, "prune", "--dry-run")
        assert set(shown["removed"]) == old
        assert set(engine.images) == before
        assert set(as_json(capsys, "prune")["removed"]) == old
        assert set(engine.images) == before - old
        assert engine.swept_stages[-1] == ("nemo-gym.stage", 0)
        assert as_json(capsys, "prune")["removed"] == []

    def test_in_use(self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        as_json(capsys, "build")
        app(tmp_path).write_text("2")
        engine.errors["remove_image"] = [EngineError("a container uses it", status=409)]
        assert len(as_json(capsys, "prune")["in_use"]) == 1
        engine.errors["remove_image"] = [EngineError("broken", status=500)]
        assert main(["images", "prune"]) == 1


def test_an_environment_server_without_an_image_is_built_by_nobody(tmp_path: Path) -> None:
    relay = {"environment_servers": {"relay": {"entrypoint": "app.py"}}}
    assert set(wanted_contexts({"relay": relay}, [str(tmp_path)])) == {"registry"}
    folder = tmp_path / "images" / "environment_servers" / "relay"
    folder.mkdir(parents=True)
    (folder / "app.py").touch()
    assert set(wanted_contexts({"relay": relay}, [str(tmp_path)])) == {"registry", "environment_servers/relay"}


class TestLock:
    @pytest.fixture
    def topology(self) -> Topology:
        return build_topology({"a": {"resources_servers": {"mine": {"entrypoint": "app.py", "domain": "other"}}}})

    def test_recorded_and_held_to(
        self,
        engine: FakeEngine,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        topology: Topology,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("nemo_gym.deployment.server_images.search_roots", lambda dirs: [tmp_path])
        path = tmp_path / "new" / "images.lock.json"
        assert main(["images", "lock", "--output", str(path)]) == 0
        lock = parse_lock(path.read_text(), "the lock")
        assert {image.name for image in lock.images} == {*OURS, "python"}
        assert {image.name: image.image_id for image in lock.images}["python"] == PYTHON_ID
        assert main(["images", "lock"]) == 0
        assert capsys.readouterr().out == path.read_text()

        assert set(ensure_locked_images(engine, topology, [], lock)) == {"registry", "a"}
        builds = len(engine.builds)
        app(tmp_path).write_text("2")
        with pytest.raises(ConfigError, match="resources_servers/mine is to be built from other files"):
            ensure_locked_images(engine, topology, [], lock)
        assert len(engine.builds) == builds
        assert set(ensure_locked_images(engine, topology, [], None)) == {"registry", "a"}

    def test_recorded_beside_the_results_of_a_run(
        self, engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        built = as_json(capsys, "build")
        session = RunningSession(
            session_id="s1",
            registry_server=BaseServerConfig(host="127.0.0.1", port=1),
            servers=(),
            timeline=(),
            images={entry["name"]: entry["reference"] for entry in built if entry["name"] != "base"},
        )
        path = tmp_path / "x_images.lock.json"
        versions: list[str] = []
        with images_recorded(session.images, path, versions.append):
            pass
        assert {image.name for image in parse_lock(path.read_text(), "").images} == {*OURS, "python"}
        path.unlink()
        engine.images.clear()
        with images_recorded(session.images, path, versions.append):
            pass
        assert "is not recorded" in caplog.text
        assert not path.exists()
