"""A build context's hash follows its content, whoever holds the files, and its tar is the same everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.containers.build_context import (
    BuildContext,
    ContextFile,
    load_base_context,
    load_server_context,
    repository_name,
)
from nemo_gym.errors import ConfigError

CONTEXT = BuildContext("nemo-gym/x", {"Dockerfile": ContextFile(b"FROM x\n"), "app/run": ContextFile(b"#!", True)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An image folder with everything that may lie in one."""
    folder = tmp_path / "mcqa"
    for path in (
        "app.py",
        "config.yaml",
        "README.md",
        "lib/words.txt",
        "lib/data/table.csv",
        "lib/tests/kept.py",
        "tests/test_app.py",
        "data/rows.jsonl",
        "__pycache__/app.cpython-311.pyc",
        "lib/__pycache__/x.pyc",
        "old.pyc",
        ".hidden",
        ".git/config",
        "requirements.txt",
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"content of {path}", encoding="utf-8")
    (tmp_path / "Dockerfile").write_text("FROM shared", encoding="utf-8")
    return folder


def load(folder: Path, ca_bundle: bytes = b"") -> BuildContext:
    return load_server_context(folder, "nemo-gym/mcqa", folder.parent / "Dockerfile", ca_bundle)


class TestDigest:
    def test_pinned(self) -> None:
        assert CONTEXT.digest() == "64455ce88135c56632af1c8816c9afd6e6f71917e9ce5022bd348fe3f3aea068"

    @given(st.data())
    def test_order_does_not_count(self, data: st.DataObject) -> None:
        files = data.draw(
            st.dictionaries(st.text(min_size=1), st.builds(ContextFile, st.binary(), st.booleans()), max_size=6)
        )
        shuffled = dict(data.draw(st.permutations(list(files.items()))))
        assert BuildContext("a", files).digest() == BuildContext("b", shuffled).digest()

    @given(st.text(min_size=1), st.binary(), st.text(min_size=1), st.binary())
    def test_names_and_contents_count(self, name: str, content: bytes, other_name: str, other: bytes) -> None:
        one, two = {name: ContextFile(content)}, {other_name: ContextFile(other)}
        assert (BuildContext("x", one).digest() == BuildContext("x", two).digest()) == (one == two)

    def test_the_ca_bundle_does_not_count(self, folder: Path) -> None:
        assert load(folder).digest() == load(folder, b"-----BEGIN CERTIFICATE-----").digest()

    def test_touching_copying_and_umasks_do_not_count(self, folder: Path) -> None:
        before = load(folder)
        for number, path in enumerate(folder.rglob("*")):
            os.utime(path, (number, number))
            path.chmod(0o600 if path.is_file() else 0o700)
        (folder / "tests" / "test_app.py").write_text("changed")
        (folder / "README.md").unlink()
        (folder / "lib" / "new.pyc").touch()
        after = load(folder)
        assert after.digest() == before.digest()
        assert after.to_tar().getvalue() == before.to_tar().getvalue()
        if os.getuid() == 0:
            os.chown(folder / "app.py", 12345, 12345)
            assert load(folder).digest() == before.digest()

    @pytest.mark.parametrize("path", ["app.py", "requirements.txt", "../Dockerfile", "lib/data/table.csv", "new.py"])
    def test_contents_on_disk_count(self, folder: Path, path: str) -> None:
        before = load(folder).digest()
        (folder / path).write_text("changed")
        assert load(folder).digest() != before

    def test_what_git_keeps_of_modes_counts(self, folder: Path) -> None:
        before = load(folder).digest()
        (folder / "app.py").chmod(0o755)
        assert load(folder).digest() != before


class TestTar:
    def test_the_same_bytes_whatever_the_order(self) -> None:
        turned = BuildContext("other", dict(reversed(list(CONTEXT.files.items()))))
        assert turned.to_tar().getvalue() == CONTEXT.to_tar().getvalue()

    def test_entries(self) -> None:
        with tarfile.open(fileobj=CONTEXT.to_tar()) as tar:
            entries = [(e.name, e.mode, e.uid, e.gid, e.mtime, e.uname) for e in tar.getmembers()]
            assert entries == [("Dockerfile", 0o644, 0, 0, 0, ""), ("app/run", 0o755, 0, 0, 0, "")]
            content = tar.extractfile("Dockerfile")
            assert content is not None
            assert content.read() == b"FROM x\n"

    @pytest.mark.parametrize("name", ["a" * 200, "/".join(["folder"] * 60), "grün/文.txt", "cut\udcff.txt"])
    def test_names_of_every_kind(self, name: str) -> None:
        context = BuildContext("x", {name: ContextFile(b"1")})
        assert re.fullmatch("[0-9a-f]{64}", context.digest())
        with tarfile.open(fileobj=context.to_tar(), encoding="utf-8") as tar:
            assert tar.getnames() == [name]


class TestServerContext:
    def test_what_it_holds(self, folder: Path) -> None:
        files = load(folder, b"bundle").files
        assert sorted(files) == [
            "Dockerfile",
            "app/app.py",
            "app/config.yaml",
            f"app/images/{folder.parent.name}/mcqa/__init__.py",
            "app/lib/data/table.csv",
            "app/lib/tests/kept.py",
            "app/lib/words.txt",
            "app/requirements.txt",
            "ca-bundle.crt",
            "requirements.txt",
        ]
        assert files["Dockerfile"].content == b"FROM shared"
        assert files["requirements.txt"].content == b"content of requirements.txt"
        assert files["ca-bundle.crt"].content == b"bundle"

    def test_modules_beside_app_have_the_names_they_have_on_the_host(self, tmp_path: Path) -> None:
        folder = tmp_path / "images" / "resources_servers" / "pair"
        folder.mkdir(parents=True)
        (tmp_path / "images" / "Dockerfile").touch()
        (folder / "app.py").write_text("from images.resources_servers.pair.other import VALUE\n\nprint(VALUE)\n")
        (folder / "other.py").write_text("VALUE = 'found'\n")
        context = load_server_context(folder, "nemo-gym/pair", tmp_path / "images" / "Dockerfile", b"")
        with tarfile.open(fileobj=context.to_tar()) as tar:
            tar.extractall(tmp_path / "inside", filter="data")
        command = [sys.executable, "app.py"]
        done = subprocess.run(
            command, cwd=tmp_path / "inside" / "app", env={}, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("found\n", "")
        (folder / "other.py").unlink()
        alone = load_server_context(folder, "nemo-gym/pair", tmp_path / "images" / "Dockerfile", b"")
        assert [path for path in alone.files if path.endswith(".py")] == ["app/app.py"]

    def test_its_own_dockerfile_wins(self, folder: Path) -> None:
        (folder / "Dockerfile").write_text("FROM own")
        assert load(folder).files["Dockerfile"].content == b"FROM own"

    def test_without_requirements(self, folder: Path) -> None:
        (folder / "requirements.txt").unlink()
        assert load(folder).files["requirements.txt"].content == b""

    def test_a_folder_without_a_server(self, folder: Path) -> None:
        (folder / "app.py").unlink()
        with pytest.raises(ConfigError, match=r"holds no server image: it needs an app\.py"):
            load(folder)
        (folder / "Dockerfile").write_text("FROM own")
        load(folder)


def test_the_base_holds_the_server_part_only() -> None:
    root = Path(__file__).parents[2]
    context = load_base_context(root / "nemo_gym", root / "Dockerfile", root / "images" / "requirements.txt", b"ca")
    assert context.repository == "nemo-gym/base"
    modules = {path for path in context.files if path.startswith("nemo_gym/")}
    assert {"nemo_gym/__init__.py", "nemo_gym/errors.py", "nemo_gym/servers/base.py"} <= modules
    assert {path.split("/")[1] for path in modules} == {
        "__init__.py",
        "errors.py",
        "py.typed",
        "secret_keys.py",
        "servers",
    }
    assert set(context.files) - modules == {"Dockerfile", "requirements.txt", "ca-bundle.crt"}


class TestRepositoryName:
    def test_readable(self) -> None:
        assert repository_name("responses_api_models", "openai_model") == "nemo-gym/responses-api-models/openai-model"

    @given(st.text(), st.text())
    def test_the_engine_accepts_it(self, server_type: str, implementation: str) -> None:
        part = r"[a-z0-9]+(-[a-z0-9]+)*"
        assert re.fullmatch(f"nemo-gym/{part}/{part}", repository_name(server_type, implementation))


class TestWrittenElsewhere:
    def test_a_dockerfile_that_names_no_base_of_ours_gets_the_folder_as_it_is(self, folder: Path) -> None:
        (folder / "Dockerfile").write_text("FROM python:3.13-slim\nCOPY . .\n")
        (folder / "app.py").unlink()
        (folder / "requirements.txt").write_text("-r more.txt\n")
        files = load(folder, b"bundle").files
        assert sorted(files) == [
            "Dockerfile",
            "README.md",
            "config.yaml",
            "data/rows.jsonl",
            "lib/data/table.csv",
            "lib/tests/kept.py",
            "lib/words.txt",
            "requirements.txt",
            "tests/test_app.py",
        ]
        assert files["requirements.txt"].content == b"-r more.txt\n"

    def test_one_that_stands_on_our_base_gets_what_ours_get(self, folder: Path) -> None:
        (folder / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n")
        assert "app/app.py" in load(folder).files

    def test_a_list_without_hashes_goes_in_as_it_can_be_installed(self, folder: Path) -> None:
        (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\nfastapi\n")
        context = load(folder)
        assert context.files["requirements.txt"].content == b"fastapi\n"
        assert [notice.partition("requirements.txt")[2][:20] for notice in context.notices] == [
            ": '-e nemo-gym[dev] ",
            " has no hashes: what",
        ]
        assert load(folder).digest() == context.digest()

    def test_a_lock_says_nothing(self, folder: Path) -> None:
        (folder / "requirements.txt").write_text("x==1 --hash=sha256:aa\n")
        assert load(folder).notices == ()

    def test_modules_that_call_one_another_by_server_type_and_implementation(self, tmp_path: Path) -> None:
        folder = tmp_path / "images" / "resources_servers" / "pair"
        folder.mkdir(parents=True)
        (tmp_path / "images" / "Dockerfile").touch()
        (folder / "app.py").write_text("from resources_servers.pair.other import VALUE\n\nprint(VALUE)\n")
        (folder / "other.py").write_text("VALUE = 'found'\n")
        context = load_server_context(folder, "nemo-gym/pair", tmp_path / "images" / "Dockerfile", b"")
        with tarfile.open(fileobj=context.to_tar()) as tar:
            tar.extractall(tmp_path / "inside", filter="data")
        command = [sys.executable, "app.py"]
        inside = tmp_path / "inside" / "app"
        done = subprocess.run(command, cwd=inside, env={}, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("found\n", "")
        (folder / "app.py").write_text("from images.resources_servers.pair.other import VALUE\n")
        ours = load_server_context(folder, "nemo-gym/pair", tmp_path / "images" / "Dockerfile", b"")
        assert not any(path.startswith("app/resources_servers") for path in ours.files)
