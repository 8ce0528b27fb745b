"""What a Docker engine says of itself and of registries, through the real SDK from a daemon in this process."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine import EngineState, PullStep, RemoteImage
from nemo_gym.errors import EngineError, ImageError
from tests.unit.fake_daemon import Request, Route, fake_daemon


def version(request: Request) -> None:
    request.send_json({"ApiVersion": "1.41", "Version": "20.10.24", "Os": "linux", "Arch": "amd64"})


def pull(routes: dict[str, Route], reference: str = "host:1/a:1", platform: str = "") -> list[PullStep]:
    with fake_daemon(routes) as daemon:
        engine = DockerEngine.connect({"DOCKER_HOST": daemon.url})
        try:
            return list(engine.pull_image(reference, silence_s=0.5, platform=platform))
        finally:
            engine.close()


def test_what_it_is() -> None:
    routes: dict[str, Route] = {"GET /version": version, "GET /info": lambda r: r.send_json({"DockerRootDir": "/data"})}
    with fake_daemon(routes) as daemon:
        engine = DockerEngine.connect({"DOCKER_HOST": daemon.url})
        assert engine.read_state() == EngineState("20.10.24", "1.41", "linux/amd64")
        assert engine.read_data_root() == "/data"
        engine.close()


def test_steps() -> None:
    def serve(request: Request) -> None:
        request.begin_chunks()
        request.send_message(status="Pulling from a", id="1")
        request.send_message(status="Downloading", id="aa", progressDetail={"current": 1, "total": 2})
        request.send_message(status="Status: Downloaded newer image for a:1")
        request.end_chunks()

    assert pull({"POST /images/create": serve}) == [
        PullStep("1", "Pulling from a"),
        PullStep("aa", "Downloading", 1, 2),
        PullStep("", "Status: Downloaded newer image for a:1"),
    ]


@pytest.mark.parametrize(("platform", "query"), [("", None), ("linux/arm64", ["linux/arm64"])])
def test_platform(platform: str, query: list[str] | None) -> None:
    asked: list[dict[str, list[str]]] = []

    def serve(request: Request) -> None:
        asked.append(parse_qs(urlsplit(request.path).query))
        request.begin_chunks()
        request.end_chunks()

    pull({"POST /images/create": serve}, platform=platform)
    assert asked[0].get("platform") == query


def test_failures() -> None:
    with pytest.raises(ImageError, match="pulling host:1/a:1 failed: toomanyrequests: x"):
        pull({"POST /images/create": lambda request: request.send_json({"message": "toomanyrequests: x"}, status=500)})


def test_silence_ends_it() -> None:
    def say_nothing(request: Request) -> None:
        request.wait_until_the_client_is_gone()

    def say_one_thing(request: Request) -> None:
        request.begin_chunks()
        request.send_message(status="Pulling from a", id="1")
        request.wait_until_the_client_is_gone()

    for silent in (say_nothing, say_one_thing):
        with pytest.raises(ImageError, match=r"the engine broke off \(.*[Tt]imed out"):
            pull({"POST /images/create": silent})


class TestRemote:
    def ask(self, content: object, status: int = 200) -> RemoteImage:
        route: Route = lambda request: request.send_json(content, status)  # noqa: E731
        with fake_daemon({"GET /distribution/host:1/a:1/json": route}) as daemon:
            engine = DockerEngine.connect({"DOCKER_HOST": daemon.url})
            try:
                return engine.read_remote_image("host:1/a:1")
            finally:
                engine.close()

    def test_found(self) -> None:
        platforms = [
            {"os": "linux", "architecture": "arm64"},
            {"os": "linux", "architecture": "arm64", "variant": "v8"},
        ]
        found = self.ask({"Descriptor": {"digest": "sha256:aa"}, "Platforms": platforms})
        assert found == RemoteImage("sha256:aa", ("linux/arm64",))
        assert self.ask({"Descriptor": {"digest": "sha256:aa"}}) == RemoteImage("sha256:aa", ())

    def test_refused(self) -> None:
        with pytest.raises(EngineError, match="unauthorized: authentication required"):
            self.ask({"message": "unauthorized: authentication required"}, 401)


class TestCredentials:
    @pytest.fixture
    def config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        return tmp_path / "config.json"

    def sent(self) -> dict[str, str]:
        seen = []

        def serve(request: Request) -> None:
            seen.append(request.headers.get("X-Registry-Auth") or "")
            request.begin_chunks()
            request.end_chunks()

        pull({"POST /images/create": serve})
        return dict(json.loads(base64.urlsafe_b64decode(seen[0]))) if seen[0] else {}

    def test_from_dockers_own_config(self, config: Path) -> None:
        login = base64.b64encode(b"me:secret").decode()
        config.write_text(json.dumps({"auths": {"host:1": {"auth": login}}}))
        assert {key.lower(): value for key, value in self.sent().items()}["password"] == "secret"

    def test_none_for_others(self, config: Path) -> None:
        config.write_text(json.dumps({"auths": {"other:1": {"auth": "bWU6c2VjcmV0"}}}))
        assert self.sent() == {}

    def test_from_a_helper(self, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helper = tmp_path / "docker-credential-mine"
        helper.write_text('#!/bin/sh\nread host\necho "{\\"Username\\": \\"me\\", \\"Secret\\": \\"of $host\\"}"\n')
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        config.write_text(json.dumps({"credHelpers": {"host:1": "mine"}}))
        assert self.sent()["Password"] == "of host:1"

    @pytest.mark.filterwarnings("ignore:docker-credential-none")  # the SDK's own, before its error
    def test_a_helper_that_is_not_there_is_no_anonymous_pull(self, config: Path) -> None:
        config.write_text(json.dumps({"credHelpers": {"host:1": "none-such"}}))
        with pytest.raises(ImageError, match="Credentials store error"):
            pull({})
