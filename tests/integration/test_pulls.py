"""Pulls by a real engine from a real registry, through a proxy that refuses, slows, cuts and stalls."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import docker.errors
import pytest

from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.preflight import PullPolicy, WantedImage, check_before_work, named_platforms
from nemo_gym.containers.pulls import pull_images
from nemo_gym.containers.references import ImageReference, parse_reference
from nemo_gym.environment import PlannedBenchmark, TaskRunner, serve_benchmark
from nemo_gym.errors import ConfigError, ImageError
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.image_registry import PASSWORD, USER, ImageRegistry, layer_of
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.sessions import containers_of, session_of
from tests.support.truthful import always_right

REFUSED = '{"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}'
NOT_THERE = "sha256:" + "ab" * 32


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRegistry]:
    with ImageRegistry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRegistry]:
    """One that wants a password."""
    with ImageRegistry(tmp_path_factory.mktemp("closed"), with_password=True) as running:
        running.push("pulls/secret", "1", layer_of({"content": b"secret"}))
        yield running


@pytest.fixture
def proxy(registry: ImageRegistry) -> Iterator[FaultyProxy]:
    with FaultyProxy(registry.port) as running:
        yield running


@pytest.fixture(autouse=True)
def no_image_is_left(engine: docker.APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test pulls from the loopback goes with it. Docker's own config is the test's."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    yield
    remove_pulled(engine)
    assert pulled(engine) == []


def remove_pulled(engine: docker.APIClient) -> None:
    for name in pulled(engine):
        with contextlib.suppress(docker.errors.NotFound):  # a digest goes with its last tag
            engine.remove_image(name, force=True)


def pulled(engine: docker.APIClient) -> list[str]:
    """Each tag and each digest of this module that came from a registry on the loopback."""
    names = [name for image in engine.images() for name in [*(image["RepoTags"] or []), *(image["RepoDigests"] or [])]]
    return [name for name in names if re.match(r"127\.0\.0\.1:\d+/pulls/", name)]


def random_layer(size: int) -> bytes:
    return layer_of({"content": os.urandom(size)})


def reference(address: str, name: str) -> ImageReference:
    return parse_reference(f"{address}/{name}")


def refused(engine: DockerEngine, wanted: ImageReference, **arguments: float) -> str:
    with pytest.raises(ImageError) as caught:
        pull_images(engine, [wanted], **arguments)
    return str(caught.value)


class TestWhatArrives:
    def test_by_tag_and_by_digest(self, our_engine: DockerEngine, registry: ImageRegistry) -> None:
        digest = registry.push("pulls/plain", "1", random_layer(100))
        by_tag = reference(registry.address, "pulls/plain:1")
        by_digest = reference(registry.address, f"pulls/plain@{digest}")
        pull_images(our_engine, [by_tag, by_digest])
        found = our_engine.find_image(str(by_tag))
        assert found is not None
        assert found.repo_digests == (f"{registry.address}/pulls/plain@{digest}",)
        assert found.platform == "linux/amd64"
        assert our_engine.find_image_id(str(by_digest)) == found.id

    def test_a_tag_that_was_pushed_again(self, our_engine: DockerEngine, registry: ImageRegistry) -> None:
        first = registry.push("pulls/moving", "1", random_layer(100))
        tag = reference(registry.address, "pulls/moving:1")
        pull_images(our_engine, [tag])
        before = our_engine.find_image_id(str(tag))
        registry.push("pulls/moving", "1", random_layer(100))
        assert plan(our_engine, tag, "missing") == []  # what is there is kept, unless asked for
        assert our_engine.find_image_id(str(tag)) == before
        assert plan(our_engine, tag, "always") == [tag]
        pull_images(our_engine, [tag])
        assert our_engine.find_image_id(str(tag)) not in (before, None)
        pinned = reference(registry.address, f"pulls/moving@{first}")
        pull_images(our_engine, [pinned])
        assert our_engine.find_image_id(str(pinned)) == before

    def test_a_tag_and_a_digest_that_do_not_exist(self, our_engine: DockerEngine, registry: ImageRegistry) -> None:
        registry.push("pulls/plain", "1", random_layer(100))
        for name in ("pulls/plain:none", f"pulls/plain@{NOT_THERE}"):
            wanted = reference(registry.address, name)
            message = refused(our_engine, wanted)
            assert f"manifest for {wanted} not found" in message
            assert message.endswith("The registry has no such tag or digest. Check the reference.")
            with pytest.raises(ConfigError, match="has no such tag or digest"):
                plan(our_engine, wanted, "missing")


def plan(engine: DockerEngine, wanted: ImageReference, policy: PullPolicy) -> list[ImageReference]:
    return check_before_work(engine, [WantedImage(wanted, policy, "server 'mine'")], environ=os.environ)


class TestBeforeAnyWork:
    def test_another_architecture(self, our_engine: DockerEngine, registry: ImageRegistry) -> None:
        registry.push("pulls/arm", "alone", random_layer(100), architecture="arm64")
        registry.push("pulls/arm", "listed", random_layer(100), architecture="arm64", wrap=True)
        for tag in ("alone", "listed"):
            with pytest.raises(ConfigError, match="is made for linux/arm64, and the engine runs linux/amd64"):
                plan(our_engine, reference(registry.address, f"pulls/arm:{tag}"), "missing")
        # one that is already there is found out as well
        alone = reference(registry.address, "pulls/arm:alone")
        pull_images(our_engine, [alone])
        with pytest.raises(ConfigError, match="is made for linux/arm64, and the engine runs linux/amd64"):
            plan(our_engine, alone, "missing")
        assert "not made for the engine's platform" in refused(
            our_engine, reference(registry.address, "pulls/arm:listed")
        )

    def test_another_architecture_that_is_asked_for(self, our_engine: DockerEngine, registry: ImageRegistry) -> None:
        registry.push("pulls/asked", "alone", random_layer(100), architecture="arm64")
        registry.push("pulls/asked", "listed", random_layer(100), architecture="arm64", wrap=True)
        for tag in ("alone", "listed"):
            name = reference(registry.address, f"pulls/asked:{tag}")
            wanted = [WantedImage(name, "missing", "server 'mine'", "linux/arm64")]
            to_pull = check_before_work(our_engine, wanted, environ=os.environ)
            pull_images(our_engine, to_pull, platforms=named_platforms(wanted))
            found = our_engine.find_image(str(name))
            assert found is not None
            assert found.platform == "linux/arm64"
            assert check_before_work(our_engine, wanted, environ=os.environ) == []

    def test_policies(self, our_engine: DockerEngine, registry: ImageRegistry) -> None:
        registry.push("pulls/policy", "1", random_layer(100))
        wanted = reference(registry.address, "pulls/policy:1")
        with pytest.raises(ConfigError, match="is not on the engine, and its pull_policy is never"):
            plan(our_engine, wanted, "never")
        assert plan(our_engine, wanted, "missing") == [wanted]
        pull_images(our_engine, [wanted])
        assert [plan(our_engine, wanted, policy) for policy in ("never", "missing", "always")] == [[], [], [wanted]]

    def test_nobody_there(self, our_engine: DockerEngine, free_port: int) -> None:
        with pytest.raises(ConfigError, match=r"connection refused\. The engine cannot reach the registry"):
            plan(our_engine, reference(f"127.0.0.1:{free_port}", "a:1"), "missing")


class TestPassword:
    def log_in(self, folder: Path, address: str, password: str) -> None:
        auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))

    def test_none_and_a_wrong_one(self, our_engine: DockerEngine, closed: ImageRegistry, tmp_path: Path) -> None:
        wanted = reference(closed.address, "pulls/secret:1")
        advice = f"`docker login {closed.address}`"
        assert advice in refused(our_engine, wanted)
        self.log_in(tmp_path, closed.address, "wrong")
        message = refused(our_engine, wanted)
        assert "unauthorized" in message
        assert advice in message
        assert "wrong" not in message
        engine = DockerEngine.connect(os.environ)
        with pytest.raises(ConfigError, match="cannot be pulled: unauthorized"):
            plan(engine, wanted, "missing")
        engine.close()

    def test_the_right_one(self, our_engine: DockerEngine, closed: ImageRegistry, tmp_path: Path) -> None:
        self.log_in(tmp_path, closed.address, PASSWORD)
        wanted = reference(closed.address, "pulls/secret:1")
        assert plan(our_engine, wanted, "missing") == [wanted]
        pull_images(our_engine, [wanted])
        assert our_engine.find_image_id(str(wanted))


class TestTrouble:
    def test_429_is_waited_out(
        self, our_engine: DockerEngine, registry: ImageRegistry, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry.push("pulls/busy", "1", random_layer(100))
        # the engine asks twice (HEAD, GET), and the third is the question when to come again
        proxy.faults = [Fault("/manifests/", status=429, headers={"Retry-After": "2"}, body=REFUSED, times=3)]
        began = time.monotonic()
        with caplog.at_level(logging.INFO):
            pull_images(our_engine, [reference(proxy.address, "pulls/busy:1")])
        assert 2.0 <= time.monotonic() - began < 10
        assert "toomanyrequests: slow down; trying again in 2.0 s" in caplog.text

    def test_503_is_tried_again(self, our_engine: DockerEngine, registry: ImageRegistry, proxy: FaultyProxy) -> None:
        registry.push("pulls/ill", "1", random_layer(100))
        proxy.faults = [Fault("/manifests/", status=503, times=2)]
        wanted = reference(proxy.address, "pulls/ill:1")
        assert plan(our_engine, wanted, "missing") == [wanted]  # it may pass
        proxy.faults = [Fault("/manifests/", status=503, times=2)]
        pull_images(our_engine, [wanted])

    def test_a_layer_that_breaks_off(
        self, our_engine: DockerEngine, registry: ImageRegistry, proxy: FaultyProxy
    ) -> None:
        registry.push("pulls/broken", "1", random_layer(2_000_000))
        proxy.faults = [Fault("/blobs/", cut_after=500_000, times=2)]
        wanted = reference(proxy.address, "pulls/broken:1")
        pull_images(our_engine, [wanted])
        assert our_engine.find_image_id(str(wanted))

    def test_slow_is_no_stall(
        self,
        our_engine: DockerEngine,
        registry: ImageRegistry,
        proxy: FaultyProxy,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("nemo_gym.containers.pulls.REPORT_INTERVAL_S", 0.5)
        registry.push("pulls/slow", "1", random_layer(2_000_000))
        proxy.faults = [Fault("/blobs/", bytes_per_s=800_000)]
        with caplog.at_level(logging.INFO):
            pull_images(our_engine, [reference(proxy.address, "pulls/slow:1")], stall_timeout_s=1.0)
        shares = [int(line.split(" %")[0].split()[-1]) for line in caplog.messages if " % (" in line]
        assert len(shares) >= 3
        assert shares == sorted(shares)
        assert 0 < shares[1] < 100

    @pytest.mark.parametrize("path", ["/blobs/", "/manifests/"])
    def test_a_stall(self, our_engine: DockerEngine, registry: ImageRegistry, proxy: FaultyProxy, path: str) -> None:
        registry.push("pulls/stalled", "1", random_layer(2_000_000))
        proxy.faults = [Fault(path, stall_after=400 if path == "/manifests/" else 1_000_000)]
        wanted = reference(proxy.address, "pulls/stalled:1")
        began = time.monotonic()
        message = refused(our_engine, wanted, stall_timeout_s=1.5)
        assert "stalled at" in message
        assert "nothing arrived for 1.5 seconds" in message
        assert time.monotonic() - began < 8
        assert our_engine.find_image_id(str(wanted)) is None
        proxy.faults = []
        pull_images(our_engine, [wanted], stall_timeout_s=5)  # and is not held up by the one before


def wait_until_nobody_asks(proxy: FaultyProxy) -> None:
    """The engine has given the pull up, too."""
    deadline = time.monotonic() + 10
    while proxy.open:
        assert time.monotonic() < deadline, "the engine still pulls"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("path", "end"),
    [("/blobs/", signal.SIGINT), ("/manifests/", signal.SIGINT), ("/blobs/", signal.SIGKILL)],
    ids=["Ctrl-C", "Ctrl-C before the first byte", "SIGKILL"],
)
def test_an_end_in_the_middle_leaves_nothing(
    engine: docker.APIClient, registry: ImageRegistry, proxy: FaultyProxy, path: str, end: signal.Signals
) -> None:
    registry.push("pulls/interrupted", "1", random_layer(2_000_000))
    slow, silent = Fault("/blobs/", bytes_per_s=50_000), Fault("/manifests/", stall_after=400)
    proxy.faults = [slow if path == "/blobs/" else silent]
    wanted = f"{proxy.address}/pulls/interrupted:1"
    program = textwrap.dedent(
        f"""
        import os
        from nemo_gym.containers.docker_engine import DockerEngine
        from nemo_gym.containers.pulls import pull_images
        from nemo_gym.containers.references import parse_reference
        pull_images(DockerEngine.connect(os.environ), [parse_reference({wanted!r})])
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 10
            while not any(path in line for line in proxy.seen):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.2)
            began = time.monotonic()
            process.send_signal(end)
            _, errors = process.communicate(timeout=15)
        finally:
            process.kill()
    assert time.monotonic() - began < 6
    assert errors.endswith("KeyboardInterrupt\n" if end is signal.SIGINT else "")
    if path == "/blobs/":  # engine 20.10 keeps a connection on which nothing moves, of a pull that it has given up
        wait_until_nobody_asks(proxy)
    assert pulled(engine) == []


def test_a_session_from_a_registry(
    engine: docker.APIClient, our_engine: DockerEngine, planned: PlannedBenchmark, registry: ImageRegistry
) -> None:
    """The resources server's image is in the registry alone, and is served by its digest."""
    with ScriptedEndpoint(always_right(planned)) as endpoint:
        with serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server:
            served = containers_of(engine, session_of(registry_server.port))["truthfulqa_mc1_resources_server"]
        repository = f"{registry.address}/pulls/mcqa"
        engine.tag(served["Image"], repository, "1")
        for message in engine.push(repository, "1", stream=True, decode=True):
            assert "error" not in message, message
        (digest,) = (name for name in engine.inspect_image(f"{repository}:1")["RepoDigests"] if repository in name)
        remove_pulled(engine)
        assert pulled(engine) == []
        image = {"reference": digest, "pull_policy": "missing"}
        overrides = endpoint.overrides(
            truthfulqa_mc1_resources_server={"resources_servers": {"mcqa": {"image": image}}}
        )
        with serve_benchmark("truthfulqa_mc1", overrides=overrides) as registry_server:
            container = containers_of(engine, session_of(registry_server.port))["truthfulqa_mc1_resources_server"]
            assert container["Config"]["Image"] == digest
            assert container["Image"] == served["Image"]

            async def run_one() -> list[float]:
                async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
                    return (await runner.run_task(planned.task_ids()[0])).rewards

            assert asyncio.run(run_one()) == [1.0]
