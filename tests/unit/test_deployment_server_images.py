"""Each server runs from the image of its own folder, found in the search roots."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.config_types import ServerInstance
from nemo_gym.containers import images
from nemo_gym.containers.build_network import BuildNetwork
from nemo_gym.containers.engine import RemoteImage
from nemo_gym.containers.images import PYTHON_IMAGE
from nemo_gym.deployment import server_images
from nemo_gym.deployment.server_images import ensure_server_images, find_image_folder, is_left_out
from nemo_gym.deployment.topology import build_topology
from nemo_gym.errors import ConfigError
from tests.unit.fake_engine import FakeEngine


def add_folder(root: Path, path: str, content: str = "pass") -> Path:
    folder = root / "images" / path
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(content)
    return folder


def resources(implementation: str) -> dict[str, Any]:
    return {"resources_servers": {implementation: {"entrypoint": "app.py", "domain": "other"}}}


class TestFinding:
    def test_the_first_root_that_has_it(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        shadowed = add_folder(second, "resources_servers/mcqa")
        assert find_image_folder("resources_servers", "mcqa", [first, second]) == shadowed
        nearer = add_folder(first, "resources_servers/mcqa")
        assert find_image_folder("resources_servers", "mcqa", [first, second]) == nearer

    def test_the_nearest_names(self, tmp_path: Path) -> None:
        for name in ("mcqa", "math", "code"):
            add_folder(tmp_path, f"resources_servers/{name}")
        with pytest.raises(ConfigError, match=r"No image folder images/resources_servers/mcq .*Did you mean 'mcqa'\?"):
            find_image_folder("resources_servers", "mcq", [tmp_path])
        with pytest.raises(ConfigError, match=r"Known ones: code, math, mcqa\.$"):
            find_image_folder("resources_servers", "something_else", [tmp_path])

    def test_none_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            find_image_folder("resources_servers", "mcqa", [tmp_path])
        assert str(caught.value).endswith(f"in {tmp_path}.")


class TestLeftOut:
    """An environment server that has no image: each row still goes to its agent."""

    def relay(self, **settings: Any) -> ServerInstance:
        return ServerInstance("relay", "environment_servers", "relay", {"entrypoint": "app.py", **settings})

    def test_without_a_folder_and_a_reference(self, tmp_path: Path) -> None:
        assert is_left_out(self.relay(), [tmp_path])
        assert not is_left_out(self.relay(image={"reference": "team/relay:1"}), [tmp_path])
        add_folder(tmp_path, "environment_servers/relay")
        assert not is_left_out(self.relay(), [tmp_path / "other", tmp_path])

    @pytest.mark.parametrize("server_type", ["resources_servers", "responses_api_agents", "responses_api_models"])
    def test_no_other_server_is(self, tmp_path: Path, server_type: str) -> None:
        assert not is_left_out(ServerInstance("x", server_type, "x", {}), [tmp_path])


class TestEnsuring:
    @pytest.fixture
    def engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
        """No image but Python; caches and the working directory in a folder of the test's own."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(images, "find_build_network", lambda environ: BuildNetwork())
        for variable in ("NEMO_GYM_PYTHON_IMAGE", "NEMO_GYM_EXTRA_ROOTS", "NEMO_GYM_CA_BUNDLE"):
            monkeypatch.delenv(variable, raising=False)
        return FakeEngine(images={PYTHON_IMAGE: "sha256:" + "ab" * 32})

    def test_one_image_each_and_the_registrys(self, engine: FakeEngine, tmp_path: Path) -> None:
        add_folder(tmp_path, "resources_servers/one")
        add_folder(tmp_path, "resources_servers/two", "print()")
        topology = build_topology({"a": resources("one"), "b": resources("one"), "c": resources("two")})
        tags = ensure_server_images(engine, topology, [])
        assert set(tags) == {"registry", "a", "b", "c"}
        assert tags["a"] == tags["b"]
        assert tags["a"].startswith("nemo-gym/resources-servers/one:")
        assert tags["c"].startswith("nemo-gym/resources-servers/two:")
        assert tags["registry"].startswith("nemo-gym/registry:")
        assert set(tags.values()) < set(engine.images)
        assert len(engine.builds) == 4
        assert ensure_server_images(engine, topology, []) == tags
        assert len(engine.builds) == 4

    def test_names_that_fold_to_the_same_repository(self, engine: FakeEngine, tmp_path: Path) -> None:
        add_folder(tmp_path, "resources_servers/a_b", "1")
        add_folder(tmp_path, "resources_servers/a-b", "2")
        tags = ensure_server_images(engine, build_topology({"x": resources("a_b"), "y": resources("a-b")}), [])
        assert tags["x"] != tags["y"]
        tars = {build["tag"]: build["tar"] for build in engine.builds}
        assert b"1" in tars[tags["x"]]
        assert b"2" in tars[tags["y"]]

    def test_a_folder_of_the_callers(self, engine: FakeEngine, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        add_folder(elsewhere, "resources_servers/mine")
        topology = build_topology({"a": resources("mine")})
        with pytest.raises(ConfigError, match="No image folder images/resources_servers/mine"):
            ensure_server_images(engine, topology, [])
        assert engine.builds == []
        assert "a" in ensure_server_images(engine, topology, [str(elsewhere)])

    def test_what_a_builder_should_know_is_said_once(
        self, engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = add_folder(tmp_path, "resources_servers/one")
        (folder / "requirements.txt").write_text("fastapi\n")
        with caplog.at_level(logging.WARNING):
            ensure_server_images(engine, build_topology({"a": resources("one"), "b": resources("one")}), [])
        (said,) = caplog.messages
        assert said.startswith(f"{folder.resolve()}/requirements.txt has no hashes")

    def test_the_users_python(self, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NEMO_GYM_PYTHON_IMAGE", "mine:1")
        engine.pullable.add("mine:1")
        engine.remote_images["mine:1"] = RemoteImage("sha256:aa", ("linux/amd64",))
        add_folder(tmp_path, "resources_servers/one")
        ensure_server_images(engine, build_topology({"a": resources("one")}), [])
        assert {build["build_args"]["PYTHON_IMAGE"] for build in engine.builds} == {"mine:1"}

    def test_what_this_checkout_ships_is_found(self, engine: FakeEngine) -> None:
        for folder in (server_images.install_root() / "images").glob("*/*/app.py"):
            server_type, implementation = folder.parts[-3:-1]
            found = find_image_folder(server_type, implementation, server_images.search_roots([]))
            assert found == folder.parent


class TestReferences:
    """In place of a folder, the config may name an image of a registry."""

    REFERENCE = "host.invalid/team/server:1"

    @pytest.fixture
    def engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("NEMO_GYM_PYTHON_IMAGE", raising=False)
        return FakeEngine(
            images={PYTHON_IMAGE: "sha256:" + "ab" * 32},
            pullable={self.REFERENCE},
            remote_images={self.REFERENCE: RemoteImage("sha256:aa", ("linux/amd64",))},
        )

    def config(self, **image: str) -> dict[str, Any]:
        server = {"entrypoint": "app.py", "domain": "other", "image": {"reference": self.REFERENCE, **image}}
        return {"a": {"resources_servers": {"folder_less": server}}}

    def test_pulled_without_a_folder(self, engine: FakeEngine) -> None:
        topology = build_topology(self.config())
        images = ensure_server_images(engine, topology, [])
        assert images["a"] == self.REFERENCE
        assert set(images) == {"registry", "a"}
        assert ensure_server_images(engine, topology, []) == images
        assert engine.calls["pull_image"] == 1

    def test_always(self, engine: FakeEngine) -> None:
        topology = build_topology(self.config(pull_policy="always"))
        for pulled in (1, 2):
            ensure_server_images(engine, topology, [])
            assert engine.calls["pull_image"] == pulled

    def test_refused_before_any_work(self, engine: FakeEngine) -> None:
        with pytest.raises(ConfigError, match="its pull_policy is never"):
            ensure_server_images(engine, build_topology(self.config(pull_policy="never")), [])
        engine.remote_images.clear()
        with pytest.raises(ConfigError, match="of server 'a' cannot be pulled: manifest"):
            ensure_server_images(engine, build_topology(self.config()), [])
        assert engine.builds == []
        assert engine.calls["pull_image"] == 0

    def test_python_is_a_part_of_the_one_report(self, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NEMO_GYM_PYTHON_IMAGE", "host.invalid/python:3")
        engine.remote_images.clear()
        with pytest.raises(ConfigError) as caught:
            ensure_server_images(engine, build_topology(self.config()), [])
        first, server, python = str(caught.value).splitlines()
        assert first == "2 things stand in the way:"
        assert server.startswith("- The image host.invalid/team/server:1 of server 'a' cannot be pulled: manifest")
        assert python.startswith("- The image host.invalid/python:3 of Python, which every server image stands on, can")
        assert "`scripts/base-image` in a checkout" in python
        assert engine.calls["pull_image"] == 0

    def test_for_a_platform_that_the_engine_emulates(self, engine: FakeEngine) -> None:
        engine.remote_images[self.REFERENCE] = RemoteImage("sha256:aa", ("linux/amd64", "linux/arm64"))
        topology = build_topology(self.config(platform="linux/arm64"))
        assert ensure_server_images(engine, topology, [])["a"] == self.REFERENCE
        assert engine.platforms == {self.REFERENCE: "linux/arm64"}
        assert ensure_server_images(engine, topology, [])["a"] == self.REFERENCE
        with pytest.raises(ConfigError, match="is made for linux/arm64, and the engine runs linux/amd64"):
            ensure_server_images(engine, build_topology(self.config()), [])

    def test_a_name_that_is_none(self) -> None:
        with pytest.raises(ConfigError, match="no image reference: the name may hold no capitals"):
            build_topology(self.config(reference="Team/Server"))

    def test_disk_for_builds_only_when_there_are_any(self, engine: FakeEngine, tmp_path: Path) -> None:
        add_folder(tmp_path, "resources_servers/one")
        topology = build_topology({"a": resources("one")})
        ensure_server_images(engine, topology, [])
        assert engine.calls["read_data_root"] == 1
        ensure_server_images(engine, topology, [])
        assert engine.calls["read_data_root"] == 1
