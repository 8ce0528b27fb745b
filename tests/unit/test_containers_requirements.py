"""A folder's requirements: a lock passes as it is; a list is made to fit where it is installed, and that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.containers.requirements import parse_requirements
from nemo_gym.errors import ConfigError

LOCK = "# a lock\nhttptools==0.6.4 \\\n    --hash=sha256:00ff\n"


def parsed(folder: Path, text: str) -> tuple[str, tuple[str, ...]]:
    path = folder / "requirements.txt"
    path.write_bytes(text.encode())
    found = parse_requirements(path)
    return found.text, found.notices


@pytest.mark.parametrize("text", [LOCK, "", "# nothing but a comment\n\n"])
def test_what_leaves_nothing_open_passes_as_it_is(tmp_path: Path, text: str) -> None:
    assert parsed(tmp_path, text) == (text, ())


def test_a_list_without_hashes_is_told_with_how_to_lock_it(tmp_path: Path) -> None:
    text, notices = parsed(tmp_path, "fastapi>=0.115  # the framework\nuvicorn\n")
    assert text == "fastapi>=0.115  # the framework\nuvicorn\n"
    (notice,) = notices
    assert notice.startswith(f"{tmp_path}/requirements.txt has no hashes: what is installed is decided when the image")
    assert "uv pip compile --generate-hashes requirements.in -o requirements.txt" in notice


@pytest.mark.parametrize(
    "line",
    [
        "-e nemo-gym[dev] @ ../../",
        "-e nemo-gym @ ../..",
        "--editable nemo-gym[dev] @ ../../",
        "--editable=nemo_gym@../../",
        "nemo-gym @ file:../../",
        "nemo.gym[a,b] @ /srv/gym",
        "-e nemo-gym[dev] @ ../../  # this package",
    ],
)
def test_the_tree_that_a_folder_was_written_in_is_left_out(tmp_path: Path, line: str) -> None:
    text, notices = parsed(tmp_path, f"{line}\r\nfastapi\n")
    assert text == "fastapi\n"
    assert len(notices) == 2
    assert f"requirements.txt: {line.partition('  #')[0]!r} is left out, as the base image has nemo_gym" in notices[0]
    assert "nemo-gym==VERSION" in notices[0]


def test_alone_it_leaves_nothing_to_install(tmp_path: Path) -> None:
    text, notices = parsed(tmp_path, "-e nemo-gym[dev] @ ../../\n")
    assert text == ""
    assert len(notices) == 1


@pytest.mark.parametrize(
    "line",
    [
        "nemo-gym[dev]",
        "nemo-gym==1.0",
        "nemo-gym @ git+https://example.com/gym.git",
        "nemo-gymnasium @ https://example.com/x.whl",
        "-i https://index.example.com/simple",
        "--extra-index-url https://index.example.com/simple",
        "--pre",
        "fastapi[standard] >= 0.1 ; python_version > '3.10'",
        "x @ https://example.com/a#egg=x",
        "-r https://example.com/more.txt",
        "-e git+https://example.com/x.git#egg=x",
    ],
)
def test_what_an_index_has_stays(tmp_path: Path, line: str) -> None:
    assert parsed(tmp_path, f"{line}\n")[0] == f"{line}\n"


@pytest.mark.parametrize(
    "line",
    [
        "-r more.txt",
        "-rmore.txt",
        "-c constraints.txt",
        "--requirement more.txt",
        "--constraint=c.txt",
        "-e .",
        "-e ../lib",
        "--editable ./lib",
        ".",
        "./wheels/x-1.0-py3-none-any.whl",
        "../x",
        "/srv/x.whl",
        "file:///srv/x.whl",
        "x @ file:///srv/x.whl",
        "x @ ./x",
        "x[a] @ ../x",
    ],
)
def test_files_that_are_not_there_when_it_is_installed(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(tmp_path, f"fastapi\n{line}\n")
    assert str(caught.value).startswith(
        f"{tmp_path}/requirements.txt asks for {line!r}: a file, and none is there when"
    )
    assert "a Dockerfile of your own beside it" in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"fast\xffapi\n")
    with pytest.raises(ConfigError, match=r"requirements\.txt must be UTF-8 text"):
        parse_requirements(tmp_path / "requirements.txt")
