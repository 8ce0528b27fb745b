"""Images are built once per content, whoever asks, and a build that is given up leaves nothing running."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

import nemo_gym
from nemo_gym.containers import builds, images
from nemo_gym.containers.build_context import BuildContext, ContextFile
from nemo_gym.containers.build_network import BuildNetwork
from nemo_gym.containers.image_progress import Telling
from nemo_gym.containers.images import (
    LOCAL_PYTHON_IMAGE,
    PYTHON_IMAGE,
    ImageFiles,
    ensure_base,
    ensure_images,
    find_ca_bundle,
    find_missing_python,
    image_files,
    python_image_of,
    tag_of,
)
from nemo_gym.errors import ConfigError, ImageError
from tests.unit.fake_engine import FakeEngine, FakeLog

PYTHON_ID = "sha256:" + "ab" * 32


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    package = tmp_path / "nemo_gym"
    (package / "servers").mkdir(parents=True)
    for path in ("__init__.py", "errors.py", "py.typed", "secret_keys.py", "servers/base.py"):
        (package / path).write_text(path)
    for name in ("base.Dockerfile", "requirements.txt", "server.Dockerfile"):
        (tmp_path / name).write_text(name)
    return ImageFiles(
        package=package,
        base_dockerfile=tmp_path / "base.Dockerfile",
        base_requirements=tmp_path / "requirements.txt",
        server_dockerfile=tmp_path / "server.Dockerfile",
        ca_bundle=b"",
        lock_folder=tmp_path / "cache" / "locks",
    )


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own network settings are not a part of these tests."""
    monkeypatch.setattr(images, "find_build_network", lambda environ: BuildNetwork())


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(images={PYTHON_IMAGE: PYTHON_ID})


def context(name: str, content: bytes = b"x") -> BuildContext:
    return BuildContext(f"nemo-gym/{name}", {"Dockerfile": ContextFile(content)})


def built(engine: FakeEngine) -> list[str]:
    return [build["tag"].partition(":")[0] for build in engine.builds]


class TestEnsureImages:
    def test_built_then_present(self, engine: FakeEngine, files: ImageFiles) -> None:
        contexts = [context("one"), context("two")]
        tags = ensure_images(engine, files, contexts)
        base, one, two = engine.builds[0], *sorted(engine.builds[1:], key=lambda build: str(build["tag"]))
        assert base["tag"].startswith("nemo-gym/base:")
        assert base["tag"].endswith("-" + "ab" * 6)
        assert base["build_args"] == {"PYTHON_IMAGE": PYTHON_IMAGE}
        assert tags == [one["tag"], two["tag"]]
        assert one["build_args"] == {"PYTHON_IMAGE": PYTHON_IMAGE, "BASE_IMAGE": base["tag"]}
        assert one["labels"] == {
            "nemo-gym.context": contexts[0].digest(),
            "nemo-gym.repository": "nemo-gym/one",
            "nemo-gym.base-image": engine.images[base["tag"]],
            "org.opencontainers.image.version": nemo_gym.__version__,
        }
        assert one["tar"] == contexts[0].to_tar().getvalue()
        assert set(engine.swept_stages) == {("nemo-gym.stage", 7 * 24)}

        assert ensure_images(engine, files, contexts) == tags
        assert len(engine.builds) == 3
        assert len(engine.swept_stages) == 2

    def test_a_tag_names_content_and_base(self, engine: FakeEngine, files: ImageFiles) -> None:
        one = context("one")
        (tag,) = ensure_images(engine, files, [one])
        base_tag, _ = ensure_base(engine, files)
        assert tag == f"nemo-gym/one:{one.digest()[:12]}-{engine.images[base_tag].removeprefix('sha256:')[:12]}"

    def test_a_changed_server_builds_only_itself(self, engine: FakeEngine, files: ImageFiles) -> None:
        ensure_images(engine, files, [context("one"), context("two")])
        engine.builds.clear()
        ensure_images(engine, files, [context("one"), context("two", b"changed")])
        assert built(engine) == ["nemo-gym/two"]

    def test_a_changed_base_builds_all(self, engine: FakeEngine, files: ImageFiles) -> None:
        ensure_images(engine, files, [context("one")])
        engine.builds.clear()
        (files.package / "servers" / "base.py").write_text("changed")
        ensure_images(engine, files, [context("one")])
        assert built(engine) == ["nemo-gym/base", "nemo-gym/one"]

    def test_a_changed_python_builds_all(self, engine: FakeEngine, files: ImageFiles) -> None:
        ensure_images(engine, files, [context("one")])
        engine.builds.clear()
        engine.images[PYTHON_IMAGE] = "sha256:" + "cd" * 32
        ensure_images(engine, files, [context("one")])
        assert built(engine) == ["nemo-gym/base", "nemo-gym/one"]

    def test_two_contexts_of_one_repository(self, engine: FakeEngine, files: ImageFiles) -> None:
        """Names that differ only in what a repository name cannot hold (a_b, a-b) still get their own images."""
        first, second = ensure_images(engine, files, [context("same", b"1"), context("same", b"2")])
        assert first != second
        assert {first, second} < set(engine.images)

    def test_one_context_twice_is_built_once(self, engine: FakeEngine, files: ImageFiles) -> None:
        first, second = ensure_images(engine, files, [context("one"), context("one")])
        assert first == second
        assert built(engine) == ["nemo-gym/base", "nemo-gym/one"]

    def test_threads_build_each_tag_once(self, engine: FakeEngine, files: ImageFiles) -> None:
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(ensure_images, engine, files, [context("one"), context("two")]) for _ in range(4)]
            assert len({tuple(run.result()) for run in runs}) == 1
        assert sorted(built(engine)) == ["nemo-gym/base", "nemo-gym/one", "nemo-gym/two"]


class TestFailures:
    def test_the_first_failure_ends_the_others(self, engine: FakeEngine, files: ImageFiles) -> None:
        engine.fail_build, engine.hang_build = "nemo-gym/bad", "nemo-gym/slow"
        with pytest.raises(ImageError, match="building nemo-gym/bad") as caught:
            ensure_images(engine, files, [context("slow"), context("bad")])
        assert caught.value.log_tail == "the end of the log"
        log = Path(str(caught.value).rpartition("The whole log: ")[2])
        assert log.parent == files.log_folder
        assert (
            log.read_text()
            == "Step 1\n\n\nbuilding " + log.stem.replace("nemo-gym_bad_", "nemo-gym/bad:") + " failed\n"
        )
        assert [log.closed.is_set() for log in logs_of(engine, "nemo-gym/slow")] == [True]

    def test_a_full_disk_and_colours(self, engine: FakeEngine, files: ImageFiles) -> None:
        engine.fail_build = "nemo-gym/base"
        engine.build_error = "\x1b[91mwrite /x: no space left on device\x1b[0m"
        with pytest.raises(ImageError, match="disk is full: `gym images prune`") as caught:
            ensure_base(engine, files)
        assert "\x1b" not in str(caught.value)

    def test_an_interrupt_ends_the_builds(
        self, engine: FakeEngine, files: ImageFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ensure_base(engine, files)
        engine.hang_build = "nemo-gym/slow"

        def interrupted(pending: object) -> Iterator[None]:
            assert engine.hanging.wait(5)
            raise KeyboardInterrupt
            yield

        monkeypatch.setattr(builds, "as_completed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_images(engine, files, [context("slow")])
        assert [log.closed.is_set() for log in logs_of(engine, "nemo-gym/slow")] == [True]

    def test_a_build_that_takes_too_long_is_broken_off(self, engine: FakeEngine, files: ImageFiles) -> None:
        ensure_base(engine, files)
        engine.hang_build = "nemo-gym/slow"
        with pytest.raises(ImageError, match=r"took longer than 0\.2 s.*image_build_timeout_seconds"):
            ensure_images(engine, dataclasses.replace(files, build_timeout_s=0.2), [context("slow")])
        assert [log.closed.is_set() for log in logs_of(engine, "nemo-gym/slow")] == [True]

    def test_a_build_that_begins_when_all_is_given_up(self, files: ImageFiles) -> None:
        """The engine may still be taking in the context when another build fails."""

        class Late(FakeEngine):
            def build_image(self, *args: object, **kwargs: object) -> FakeLog:
                log = super().build_image(*args, **kwargs)  # type: ignore[arg-type]
                if str(kwargs["tag"]).startswith("nemo-gym/late"):
                    entered.set()
                    failed.wait(5)
                    time.sleep(0.05)
                elif str(kwargs["tag"]).startswith("nemo-gym/bad"):
                    entered.wait(5)
                    failed.set()
                return log

        entered, failed = threading.Event(), threading.Event()
        engine = Late(images={PYTHON_IMAGE: PYTHON_ID}, fail_build="nemo-gym/bad")
        with pytest.raises(ImageError, match="nemo-gym/bad"):
            ensure_images(engine, files, [context("late"), context("bad")])
        assert [log.closed.is_set() for log in logs_of(engine, "nemo-gym/late")] == [True]

    def test_a_lock_folder_that_cannot_be_made(self, engine: FakeEngine, files: ImageFiles) -> None:
        files.lock_folder.parent.write_text("a file")
        with pytest.raises(ConfigError, match="Set XDG_CACHE_HOME"):
            ensure_base(engine, files)

    def test_a_lock_that_cannot_be_written(self, engine: FakeEngine, files: ImageFiles) -> None:
        base_tag, _ = ensure_base(engine, files)
        (lock,) = [path for path in files.lock_folder.iterdir() if path.name.startswith("nemo-gym_base")]
        lock.unlink(missing_ok=True)
        lock.mkdir()  # stands for a lock of root's
        del engine.images[base_tag]
        with pytest.raises(ConfigError, match="Set XDG_CACHE_HOME"):
            ensure_base(engine, files)

    def test_the_lock_is_free_after_a_failure(self, engine: FakeEngine, files: ImageFiles) -> None:
        engine.fail_build = "nemo-gym/base"
        with pytest.raises(ImageError):
            ensure_base(engine, files)
        engine.fail_build = "\0"
        ensure_base(engine, files)

    def test_another_process_builds(
        self, engine: FakeEngine, files: ImageFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        base_tag, _ = ensure_base(engine, files)
        wanted = tag_of(context("one"), engine.images[base_tag])
        monkeypatch.setattr(builds, "_LOCK_WAIT_S", 0.01)
        said = threading.Event()
        logging.getLogger("nemo_gym.containers.builds").addFilter(waiting := SaysWaiting(said))
        with caplog.at_level(logging.INFO), ThreadPoolExecutor(1) as pool:
            with FileLock(files.lock_folder / f"{wanted.replace('/', '_').replace(':', '_')}.lock"):
                run = pool.submit(ensure_images, engine, files, [context("one")])
                assert said.wait(5)
                engine.images[wanted] = "sha256:built-elsewhere"
            assert run.result(5) == [wanted]
        logging.getLogger("nemo_gym.containers.builds").removeFilter(waiting)
        assert built(engine) == ["nemo-gym/base"]
        assert caplog.text.count("another process builds") == 1


class TestNetwork:
    PROXY = "http://me:hidden-password@proxy.example:3128"

    def test_builds_get_it_and_nothing_tells_its_secrets(
        self, engine: FakeEngine, files: ImageFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network = BuildNetwork({"HTTPS_PROXY": self.PROXY}, ("hidden-password", "Step"))
        monkeypatch.setattr(images, "find_build_network", lambda environ: network)
        ensure_base(engine, files)
        assert engine.builds[0]["build_args"] == {"HTTPS_PROXY": self.PROXY, "PYTHON_IMAGE": PYTHON_IMAGE}
        assert engine.removed_images == [f"sha256:stage-of-{engine.builds[0]['tag']}"]
        (log,) = files.log_folder.iterdir()
        assert log.read_text() == "**** 1\n\n"

    def test_an_image_that_would_tell_them_is_not_kept(
        self, engine: FakeEngine, files: ImageFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network = BuildNetwork({"PIP_INDEX_URL": "https://me:hidden-password@x.example"}, ("hidden-password",))
        monkeypatch.setattr(images, "find_build_network", lambda environ: network)
        engine.history = "|1 PIP_INDEX_URL=https://me:hidden-password@x.example /bin/sh -c true"
        with pytest.raises(ImageError, match="must declare PIP_INDEX_URL in stages before the last one") as caught:
            ensure_base(engine, files)
        assert "hidden-password" not in str(caught.value)
        assert set(engine.images) == {PYTHON_IMAGE}

    def test_it_is_not_looked_for_when_nothing_is_built(
        self, engine: FakeEngine, files: ImageFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ensure_images(engine, files, [context("one")])
        monkeypatch.delattr(images, "find_build_network")
        ensure_images(engine, files, [context("one")])

    def test_slow_builds_tell_their_steps(
        self, engine: FakeEngine, files: ImageFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(builds, "_PROGRESS_EVERY_S", -1.0)
        one, two = (Telling(f"nemo-gym/{name}:1", f"nemo-gym/{name}", "building") for name in ("one", "two"))
        assert list(builds._told(one, ["Step 2/9 : RUN x\n", " ---> 1\n"])) == [
            "Step 2/9 : RUN x\n",
            " ---> 1\n",
        ]
        monkeypatch.setattr(builds, "_PROGRESS_EVERY_S", 60.0)
        with caplog.at_level(logging.INFO):
            list(builds._told(two, ["Step 3/9 : RUN y\n"]))
        assert "step 3" not in caplog.text


class SaysWaiting(logging.Filter):
    def __init__(self, said: threading.Event) -> None:
        super().__init__()
        self.said = said

    def filter(self, record: logging.LogRecord) -> bool:
        if "another process builds" in record.getMessage():
            self.said.set()
        return True


def logs_of(engine: FakeEngine, prefix: str) -> list[FakeLog]:
    return [log for tag, log in engine.logs.items() if tag.startswith(prefix)]


class TestPython:
    def test_the_public_one_first(self, files: ImageFiles) -> None:
        engine = FakeEngine(images={PYTHON_IMAGE: PYTHON_ID, LOCAL_PYTHON_IMAGE: "sha256:00"})
        assert ensure_base(engine, files)[1] == PYTHON_IMAGE

    def test_the_local_equivalent_without_asking_a_registry(self, files: ImageFiles) -> None:
        engine = FakeEngine(images={LOCAL_PYTHON_IMAGE: PYTHON_ID})
        assert ensure_base(engine, files)[1] == LOCAL_PYTHON_IMAGE
        assert engine.calls["pull_image"] == 0

    def test_pulled(self, files: ImageFiles) -> None:
        engine = FakeEngine(pullable={PYTHON_IMAGE})
        assert ensure_base(engine, files)[1] == PYTHON_IMAGE

    def test_the_users_choice_alone(self, files: ImageFiles) -> None:
        engine = FakeEngine(images={PYTHON_IMAGE: PYTHON_ID}, pullable={"mine:1"})
        assert ensure_base(engine, files, "mine:1")[1] == "mine:1"
        assert engine.builds[0]["build_args"] == {"PYTHON_IMAGE": "mine:1"}

    def test_no_registry_answers(self, files: ImageFiles) -> None:
        with pytest.raises(ImageError, match="scripts/base-image") as caught:
            ensure_base(FakeEngine(), files)
        assert "NEMO_GYM_PYTHON_IMAGE" in str(caught.value)
        assert caught.value.log_tail == "no registry answers"

    def test_which_one_is_missing(self) -> None:
        assert find_missing_python(FakeEngine(images={LOCAL_PYTHON_IMAGE: PYTHON_ID})) is None
        missing = find_missing_python(FakeEngine())
        assert missing is not None
        assert str(missing.reference) == PYTHON_IMAGE
        assert missing.advice.startswith("Where no image registry can be reached, `scripts/base-image`")
        mine = find_missing_python(FakeEngine(images={PYTHON_IMAGE: PYTHON_ID}), "mine:1")
        assert mine is not None
        assert str(mine.reference) == "mine:1"
        with pytest.raises(ConfigError, match="NEMO_GYM_PYTHON_IMAGE: 'Mine:1' is no image reference"):
            find_missing_python(FakeEngine(), "Mine:1")

    @pytest.mark.parametrize(("environ", "choice"), [({}, None), ({"NEMO_GYM_PYTHON_IMAGE": ""}, None)])
    def test_no_choice(self, environ: dict[str, str], choice: str | None) -> None:
        assert python_image_of(environ) is choice
        assert python_image_of({"NEMO_GYM_PYTHON_IMAGE": "mine:1"}) == "mine:1"


class TestFiles:
    def test_ca_bundle(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"A")
        (tmp_path / "b").write_bytes(b"B")
        assert find_ca_bundle({}) == b""
        assert find_ca_bundle({"PIP_CERT": f"{tmp_path}/a"}) == b"A"
        assert find_ca_bundle({"SSL_CERT_FILE": f"{tmp_path}/gone", "CURL_CA_BUNDLE": f"{tmp_path}/a"}) == b"A"
        assert find_ca_bundle({"PIP_CERT": f"{tmp_path}/a", "NEMO_GYM_CA_BUNDLE": f"{tmp_path}/b"}) == b"B"
        with pytest.raises(ConfigError, match="NEMO_GYM_CA_BUNDLE must name a file"):
            find_ca_bundle({"PIP_CERT": f"{tmp_path}/a", "NEMO_GYM_CA_BUNDLE": f"{tmp_path}/gone"})

    def test_where_everything_stands(self, tmp_path: Path) -> None:
        found = image_files(tmp_path, {"XDG_CACHE_HOME": "/somewhere"})
        assert found.base_dockerfile == tmp_path / "Dockerfile"
        assert found.base_requirements == tmp_path / "images" / "requirements.txt"
        assert found.server_dockerfile == tmp_path / "images" / "Dockerfile"
        assert found.lock_folder == Path("/somewhere/nemo-gym/locks")
        assert (found.package / "containers" / "images.py").is_file()
        assert image_files(tmp_path, {}).lock_folder == Path.home() / ".cache" / "nemo-gym" / "locks"
