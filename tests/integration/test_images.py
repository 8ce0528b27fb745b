"""Images on the real engine: built once, rebuilt alone, given up without a trace, told by labels and lock file."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from nemo_gym.containers import images
from nemo_gym.containers.build_context import BuildContext, ContextFile
from nemo_gym.containers.build_network import build_network
from nemo_gym.containers.builds import Build, Builds
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.deployment import image_commands
from nemo_gym.deployment.image_commands import ImageEntry
from nemo_gym.errors import ImageError
from tests.support.command import GYM, gym, running

NAME = "resources_servers/made"
REPOSITORY = "nemo-gym/resources-servers/made"
CONFIG = {"made_server": {"resources_servers": {"made": {"entrypoint": "app.py", "domain": "other"}}}}
SLOW = "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN sleep 300\n"


@pytest.fixture
def folder(tmp_path: Path, engine: docker.APIClient) -> Iterator[Path]:
    """An image folder that no engine has seen before; whatever is built of it is removed."""
    made = tmp_path / "root" / "images" / NAME
    made.mkdir(parents=True)
    (made / "app.py").write_text(f"NAME = '{uuid.uuid4()}'\n")
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    before = tags(engine)
    yield made
    for tag in tags(engine) - before:
        engine.remove_image(tag)


def tags(engine: docker.APIClient) -> set[str]:
    return {tag for image in engine.images(REPOSITORY) for tag in image["RepoTags"] or []}


def build(engine: DockerEngine, folder: Path) -> ImageEntry:
    """The image of the folder, built where it is missing."""
    contexts = image_commands.wanted_contexts(CONFIG, [str(folder.parents[2])])
    (found,) = [entry for entry in image_commands.build(engine, contexts) if entry.name == NAME]
    return found


def failure(engine: DockerEngine, folder: Path) -> str:
    """What a build that fails says; its log is on disk, and no tag is there."""
    before = tags(docker.APIClient())
    with pytest.raises(ImageError) as caught:
        build(engine, folder)
    said, _, path = str(caught.value).rpartition("The whole log: ")
    assert Path(path).read_text().count("\n") >= said.count("\n") - 3
    assert tags(docker.APIClient()) == before
    return said


@pytest.fixture(autouse=True)
def logs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and logs in the test's own folder, which its commands find too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class TestContent:
    def test_built_once_and_rebuilt_alone(self, our_engine: DockerEngine, folder: Path, tmp_path: Path) -> None:
        first = build(our_engine, folder)
        os.utime(folder / "app.py", (0, 0))
        assert build(our_engine, folder) == first
        clone = tmp_path / "another" / "images" / NAME
        shutil.copytree(folder, clone, copy_function=shutil.copyfile)
        clone.chmod(0o700)
        (clone / "app.py").chmod(0o600)
        assert build(our_engine, clone) == first

        (folder / "app.py").write_text("changed = True\n")
        started = time.monotonic()
        second = build(our_engine, folder)
        assert time.monotonic() - started < 3
        assert second.reference != first.reference
        logs = {log.name.partition("made_")[2] for log in (tmp_path / "cache/nemo-gym/build-logs").glob("*made_*")}
        assert logs == {f"{entry.reference.rpartition(':')[2]}.log" for entry in (first, second)}

    def test_checks_take_no_time(self, our_engine: DockerEngine, folder: Path) -> None:
        build(our_engine, folder)
        taken = []
        for _ in range(5):
            started = time.monotonic()
            contexts = image_commands.wanted_contexts(CONFIG, [str(folder.parents[2])])
            images.ensure_images(
                our_engine,
                images.image_files(image_commands.install_root(), os.environ),
                list(contexts.values()),
                python_image=images.python_image_of(os.environ),
            )
            taken.append(time.monotonic() - started)
        assert min(taken) < 0.05

    def test_labels_and_files(self, our_engine: DockerEngine, engine: docker.APIClient, folder: Path) -> None:
        git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "made"]):
            subprocess.run([*git, *words], check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        built = build(our_engine, folder)
        assert built.state is not None
        labels = built.state.labels
        assert labels["org.opencontainers.image.revision"] == commit
        assert labels["nemo-gym.repository"] == REPOSITORY
        assert labels["nemo-gym.context"].startswith(built.reference.partition(":")[2].partition("-")[0])
        assert engine.inspect_image(labels["nemo-gym.base-image"])["RepoTags"][0].startswith("nemo-gym/base:")
        assert built.own_bytes is not None
        assert built.own_bytes < 25_000_000
        listing = our_engine.run_once(built.reference, ["stat", "-c", "%u %g %Y", "/opt/server/app/app.py"], {})
        assert listing.split() == ["0", "0", "315532800"]

    def test_credentials_stay_out(
        self, our_engine: DockerEngine, engine: docker.APIClient, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = uuid.uuid4().hex
        proxies = {"HTTPS_PROXY": f"http://me:{secret}@proxy.invalid:3128"}
        network = build_network(proxies, {"index-url": f"https://me:{secret}@index.invalid/simple"})
        monkeypatch.setattr(images, "find_build_network", lambda environ: network)
        # pip asks nobody when there is nothing to install, but the arguments are there
        (folder / "requirements.txt").write_text("# nothing\n")
        built = build(our_engine, folder)
        assert secret not in json.dumps([engine.history(built.reference), engine.inspect_image(built.reference)])
        stages = engine.images(filters={"dangling": True, "label": "nemo-gym.stage"})
        assert stages, "the build cache of others is kept"
        assert secret not in json.dumps([engine.history(stage["Id"]) for stage in stages])

    def test_an_image_that_would_tell_credentials_is_not_kept(
        self, our_engine: DockerEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network = build_network({}, {"index-url": f"https://me:{uuid.uuid4()}@index.invalid/simple"})
        monkeypatch.setattr(images, "find_build_network", lambda environ: network)
        (folder / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nARG PIP_INDEX_URL\nRUN true\n")
        before = tags(docker.APIClient())
        with pytest.raises(ImageError, match="in stages before the last one only"):
            build(our_engine, folder)
        assert tags(docker.APIClient()) == before


class TestFailures:
    def test_a_syntax_error(self, our_engine: DockerEngine, folder: Path) -> None:
        (folder / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUNN nothing\n")
        assert "unknown instruction: RUNN" in failure(our_engine, folder)

    def test_a_step_that_fails(self, our_engine: DockerEngine, folder: Path) -> None:
        (folder / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo so it goes && exit 7\n")
        said = failure(our_engine, folder)
        assert "so it goes" in said
        assert "7" in said

    def test_requirements_that_conflict(self, our_engine: DockerEngine, folder: Path) -> None:
        wanted = "'idna==3.9' 'idna==3.10'"
        pip = f"python3 -m venv /tmp/pip && /tmp/pip/bin/pip install {wanted}"
        (folder / "Dockerfile").write_text(f"ARG BASE_IMAGE\nFROM ${{BASE_IMAGE}}\nRUN {pip}\n")
        said = failure(our_engine, folder)
        assert "Cannot install idna==3.10 and idna==3.9" in said or "Cannot install idna==3.9 and idna==3.10" in said
        assert "\x1b" not in said

    def test_a_requirement_that_is_not_what_was_pinned(self, our_engine: DockerEngine, folder: Path) -> None:
        (folder / "requirements.txt").write_text(f"idna==3.10 --hash=sha256:{'0' * 64}\n")
        assert "THESE PACKAGES DO NOT MATCH THE HASHES" in failure(our_engine, folder)


def images_build(folder: Path) -> list[str]:
    config = folder.parents[3] / "config.yaml"
    return [*GYM, "images", "build", "--config", str(config), "--search-dir", str(folder.parents[2])]


def build_containers(engine: docker.APIClient) -> list[dict[str, Any]]:
    return [c for c in engine.containers() if "sleep 300" in c["Command"]]


def wait_until(condition: Callable[[], bool], deadline_s: float = 15.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


class TestProcesses:
    def test_two_build_one_image_once(self, engine: docker.APIClient, folder: Path) -> None:
        (folder / "Dockerfile").write_text(
            "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY app /opt/server/app\nRUN sleep 1\n"
        )
        with ThreadPoolExecutor(2) as pool:
            runs = [
                pool.submit(subprocess.run, images_build(folder), capture_output=True, text=True, timeout=60)
                for _ in range(2)
            ]
            said = [run.result() for run in runs]
        assert [done.returncode for done in said] == [0, 0], [done.stderr for done in said]
        assert sum(done.stderr.count(f"built {REPOSITORY}") for done in said) == 1
        assert len(tags(engine)) >= 1

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
    def test_a_build_that_is_broken_off(
        self, engine: docker.APIClient, folder: Path, number: signal.Signals, code: int
    ) -> None:
        (folder / "Dockerfile").write_text(SLOW)
        before = tags(engine)
        with running(images_build(folder), folder) as command:
            wait_until(lambda: len(build_containers(engine)) == 1)
            command.send_signal(number)
            command.communicate(timeout=20)
        assert command.returncode == code
        wait_until(lambda: build_containers(engine) == [])
        assert tags(engine) == before


@pytest.fixture
def small_engine(our_engine: DockerEngine, engine: docker.APIClient) -> Iterator[DockerEngine]:
    """An engine with 400 MB for its data, the Python image on it; without a network, so that no other engine minds."""
    python = images.find_python(our_engine, images.python_image_of(os.environ))
    assert python is not None
    with contextlib.ExitStack() as cleanup:
        root = Path(tempfile.mkdtemp(prefix="ng", dir="/var/tmp"))  # short: paths of sockets have 107 characters
        cleanup.callback(shutil.rmtree, root)
        with (root / "disk").open("wb") as disk:
            disk.truncate(400 * 1024 * 1024)
        (root / "data").mkdir()
        subprocess.run(["mkfs.ext4", "-q", root / "disk"], check=True)
        subprocess.run(["mount", "-o", "loop", root / "disk", root / "data"], check=True)
        cleanup.callback(subprocess.run, ["umount", root / "data"], check=True)
        command = ["dockerd", "--bridge=none", "--iptables=false", "--data-root", root / "data"]
        command += ["--exec-root", root / "exec", "--pidfile", root / "pid", "--host", f"unix://{root}/docker.sock"]
        log = cleanup.enter_context((root / "log").open("wb"))
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
        cleanup.callback(daemon.wait, 60)
        cleanup.callback(daemon.terminate)
        wait_until((root / "docker.sock").exists, 30)
        small = docker.APIClient(f"unix://{root}/docker.sock", version="1.41", timeout=120)
        cleanup.callback(small.close)
        wait_until(lambda: answers(small), 30)
        for _ in small.load_image(engine.get_image(python[0])):
            pass
        small.tag(python[1], REPOSITORY, "python")
        connected = DockerEngine.connect({"DOCKER_HOST": f"unix://{root}/docker.sock"})
        cleanup.callback(connected.close)
        yield connected


def answers(client: docker.APIClient) -> bool:
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False


@pytest.mark.full
def test_a_full_disk(small_engine: DockerEngine, tmp_path: Path) -> None:
    fills = f"FROM {REPOSITORY}:python\nRUN dd if=/dev/zero of=/filling bs=1M count=500\n"
    context = BuildContext(REPOSITORY, {"Dockerfile": ContextFile(fills.encode())})
    tag = f"{REPOSITORY}:full"
    with (
        pytest.raises(ImageError, match=r"No space left on device(?s:.*)`gym images prune`"),
        Builds(small_engine, tmp_path / "locks", tmp_path / "logs", build_network({}, {})) as builds,
    ):
        builds.run([Build(context, tag, {}, "")])
    assert small_engine.find_image(tag) is None
    assert small_engine.list_containers("") == []
    assert small_engine.run_once(f"{REPOSITORY}:python", ["python3", "-c", "print(1)"], {}).strip() == "1"


class TestBuildKit:
    """The Dockerfiles are plain enough for either builder."""

    def test_an_image_and_its_base(self, our_engine: DockerEngine, engine: docker.APIClient, folder: Path) -> None:
        python = images.find_python(our_engine, images.python_image_of(os.environ))
        assert python is not None
        context = image_commands.wanted_contexts(CONFIG, [str(folder.parents[2])])[NAME]
        base, mine = f"{REPOSITORY}-base:buildkit", f"{REPOSITORY}:buildkit"
        try:
            arguments = {"PYTHON_IMAGE": python[0]}
            buildkit(engine, image_commands.base_context().to_tar().getvalue(), base, arguments)
            buildkit(engine, context.to_tar().getvalue(), mine, {**arguments, "BASE_IMAGE": base})
            said = our_engine.run_once(mine, ["python", "-c", "import nemo_gym.servers.base, app; print(app.NAME)"], {})
            assert said.strip() in (folder / "app.py").read_text()
        finally:
            for tag in (mine, base):
                if engine.images(tag):
                    engine.remove_image(tag)


def buildkit(engine: docker.APIClient, tar: bytes, tag: str, arguments: dict[str, str]) -> None:
    """Build with the engine's own BuildKit, which fetches the context from here: its sessions are not for the SDK."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(tar)))
            self.end_headers()
            self.wfile.write(tar)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            query = urllib.parse.urlencode(
                {
                    "version": "2",
                    "remote": f"http://127.0.0.1:{server.server_port}/{uuid.uuid4()}.tar",
                    "t": tag,
                    "buildargs": json.dumps(arguments),
                }
            )
            with engine.post(f"{engine.base_url}/v{engine.api_version}/build?{query}", timeout=120) as answer:
                assert "Successfully tagged" in answer.text, answer.text[-1000:]
        finally:
            server.shutdown()
            thread.join()


class TestLock:
    def test_recorded_and_refused(self, engine: docker.APIClient, folder: Path, tmp_path: Path) -> None:
        choice = ["--config", str(tmp_path / "config.yaml"), "--search-dir", str(tmp_path / "root")]
        path = tmp_path / "images.lock.json"
        gym("images", "lock", *choice, "--output", str(path))
        locked = json.loads(path.read_text())["images"]
        assert {NAME, "registry", "python"} <= set(locked)
        assert locked[NAME]["image_id"] == engine.inspect_image(locked[NAME]["reference"])["Id"]
        assert "aiohttp" in locked[NAME]["packages"]
        listed = {entry["name"]: entry for entry in json.loads(gym("images", "list", *choice, "--json"))}
        assert listed[NAME]["reference"] == locked[NAME]["reference"]

        (folder / "app.py").write_text("changed = True\n")
        before = tags(engine)
        said = gym("env", "start", *choice, "--locked", str(path), code=2)
        assert f"{NAME} is to be built from other files" in said
        assert str(path) in said
        assert tags(engine) == before
        assert "cannot be read" in gym("env", "start", *choice, "--locked", str(tmp_path / "gone"), code=2)


class TestPrune:
    def test_earlier_contents_go(
        self, our_engine: DockerEngine, engine: docker.APIClient, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = build(our_engine, folder)
        (folder / "app.py").write_text("changed = True\n")
        contexts = image_commands.wanted_contexts(CONFIG, [str(folder.parents[2])])
        wanted = image_commands.build(our_engine, contexts)
        old = image_commands.superseded(our_engine, wanted)
        assert first.reference in [entry.reference for entry in old]
        assert not {entry.reference for entry in wanted} & {entry.reference for entry in old}
        # of this engine's images only what the test has made is removed, and no build cache
        monkeypatch.setattr(our_engine, "remove_dangling_images", lambda *_, **__: None)
        container = engine.create_container(first.reference, ["true"])
        try:
            mine = [entry for entry in old if entry.reference == first.reference]
            assert image_commands.prune(our_engine, mine) == ([], mine)
        finally:
            engine.remove_container(container)
        assert image_commands.prune(our_engine, mine) == (mine, [])
        assert engine.images(first.reference) == []
