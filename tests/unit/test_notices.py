"""images/NOTICES.md: whose licences it states, and where it takes them from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts import notices

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ({"license_expression": "MIT OR Apache-2.0", "license": "MIT"}, "MIT OR Apache-2.0"),
        ({"classifier": ["License :: OSI Approved :: BSD License", "Typing :: Typed"], "license": "x"}, "BSD License"),
        ({"license": "Apache 2.0\n\nwith a text of many lines"}, "Apache 2.0"),
        ({"license": "", "classifier": ["Typing :: Typed"]}, "not said in its metadata"),
        ({}, "not said in its metadata"),
    ],
)
def test_a_licence_is_what_the_metadata_says(metadata: dict[str, Any], licence: str) -> None:
    assert notices.licence_of(metadata) == licence


def test_a_lock_is_read_without_its_hashes_and_markers() -> None:
    text = (
        "# a lock\na-b==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:00\nc==2.0.post1 \\\n    --hash=sha256:11\n"
    )
    assert notices.parse_lock(text) == {"a-b": "1.0", "c": "2.0.post1"}


def test_a_package_stands_once_with_the_images_that_have_it() -> None:
    one = {"name": "A_b", "version": "1", "license_expression": "MIT"}
    other = {"name": "c", "version": "2", "license": "X | Y"}
    table = notices.render({"base": [other], "x/y": [one], "x/z": [one]}).splitlines()
    assert table[-2:] == ["| a-b | 1 | MIT | x/y, x/z |", "| c | 2 | X / Y | every image |"]


def test_the_notices_name_every_package_of_every_lock_at_its_version() -> None:
    rows = [line.split(" | ") for line in notices.NOTICES.read_text().splitlines() if line.startswith("| ")]
    named = {(row[0].removeprefix("| "), row[1]) for row in rows[1:]}
    pinned = {
        (name.lower().replace("_", "-"), version)
        for lock in notices.find_locks(ROOT).values()
        for name, version in notices.parse_lock(lock.read_text()).items()
    }
    assert pinned == named, "a lock has changed: run scripts/notices"
