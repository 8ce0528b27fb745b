"""The options of tests/conftest.py fail runs that lost tests, in one process and in several."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

TWO_TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.{mark}
def test_other(): assert {outcome}
"""


def run(folder: Path, *options: str, mark: str = "usefixtures()", outcome: bool = True) -> tuple[int, str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]", encoding="utf-8")
    text = TWO_TESTS.format(mark=mark, outcome=outcome)
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_enough_passed(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--min-passed", "2", "--forbid-skips")
    assert code == 0, output


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "in-two-processes"])
def test_too_few_passed(tmp_path: Path, processes: tuple[str, ...]) -> None:
    code, output = run(tmp_path, "--min-passed", "3", *processes)
    assert code == 9
    assert "2 tests passed or failed, and at least 3 must" in output


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "in-two-processes"])
@pytest.mark.parametrize(("mark", "outcome"), [("skip(reason='no engine')", True), ("xfail", False)])
def test_a_skip_is_a_failure(tmp_path: Path, mark: str, outcome: bool, processes: tuple[str, ...]) -> None:
    code, output = run(tmp_path, "--forbid-skips", *processes, mark=mark, outcome=outcome)
    assert code == 9
    assert "1 tests were skipped" in output
    assert run(tmp_path, *processes, mark=mark, outcome=outcome)[0] == 0


@pytest.mark.parametrize("failing", ["test_other", "setup"])
def test_what_failed_may_be_run_again_and_what_was_lost_may_not(tmp_path: Path, failing: str) -> None:
    mark, outcome = ("usefixtures()", False) if failing == "test_other" else ("usefixtures('missing')", True)
    assert run(tmp_path, "--min-passed", "2", "--forbid-skips", mark=mark, outcome=outcome)[0] == 1
    assert run(tmp_path, "--min-passed", "3", mark=mark, outcome=outcome)[0] == 9
    skipped = "import pytest\n\n@pytest.mark.skip\ndef test_skipped(): pass\n"
    (tmp_path / "test_more.py").write_text(skipped, encoding="utf-8")
    assert run(tmp_path, "--forbid-skips", mark=mark, outcome=outcome)[0] == 9
