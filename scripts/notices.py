"""Writes images/NOTICES.md: which Python packages the images contain, under which licence each says that it is.

The packages are those of the images' locks; the licences are read from the metadata of the very distributions that a
lock pins, which pip is asked for without installing anything.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTICES = ROOT / "images" / "NOTICES.md"
IMAGE_PYTHON = "3.13"
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_OSI = "License :: OSI Approved :: "

TEXT = """\
# What the images contain

Every image holds this package's server part (Apache-2.0, [LICENSE](../LICENSE)) and stands on an image of Python, by
default `python:3.13-slim-trixie`: Python itself is under the PSF licence, and Debian's packages under their own, which
stand in the image in `/usr/share/doc/*/copyright`. What else single images bring (weights, data) stands in their
READMEs.

The Python packages in the images, from their locks. A licence is what the distribution's own metadata says; its text is
in the image, in the package's `.dist-info` folder, where the distribution brings one. What is installed in an image as
built here is listed by `gym images lock`.

Written by `scripts/notices`.

"""


def find_locks(root: Path) -> dict[str, Path]:
    """The lock of the base and of each image that has packages of its own, by the image's name."""
    locks = {"base": root / "images" / "requirements.txt"}
    for path in sorted((root / "images").glob("*/*/requirements.txt")):
        if parse_lock(path.read_text(encoding="utf-8")):
            locks["/".join(path.parts[-3:-1])] = path
    return locks


def parse_lock(text: str) -> dict[str, str]:
    """Name -> version of each package that a lock pins."""
    found = (_PINNED.match(line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match}


def licence_of(metadata: Mapping[str, Any]) -> str:
    """What a distribution says of its licence: an expression, else classifiers, else the first line of a text."""
    expression = metadata.get("license_expression")
    if expression:
        return str(expression)
    named = [line.removeprefix(_OSI) for line in metadata.get("classifier", []) if line.startswith(_OSI)]
    if named:
        return ", ".join(named)
    text = str(metadata.get("license") or "").strip()
    return text.splitlines()[0] if text else "not said in its metadata"


def read_metadata(lock: Path) -> list[dict[str, Any]]:
    """The metadata of each distribution that a lock pins, as pip's installation report has it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", "--target", "/nonexistent", "--no-deps"]
    command += ["--prefer-binary", "--python-version", IMAGE_PYTHON, "--require-hashes", "-r", str(lock)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"pip could not read what {lock} pins.")
    return [entry["metadata"] for entry in json.loads(done.stdout)["install"]]


def render(packages: Mapping[str, list[dict[str, Any]]]) -> str:
    """The whole file: image -> the metadata of its packages."""
    rows: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for image, found in packages.items():
        for metadata in found:
            key = metadata["name"].lower().replace("_", "-"), metadata["version"]
            rows.setdefault(key, (licence_of(metadata), []))[1].append(image)
    lines = ["| package | version | licence | in |", "|---|---|---|---|"]
    for (name, version), (licence, images) in sorted(rows.items()):
        held = "every image" if "base" in images else ", ".join(images)
        lines.append(f"| {name} | {version} | {licence.replace('|', '/')} | {held} |")
    return TEXT + "\n".join(lines) + "\n"


def main() -> None:
    packages = {image: read_metadata(lock) for image, lock in find_locks(ROOT).items()}
    NOTICES.write_text(render(packages), encoding="utf-8")
    print(f"{NOTICES.relative_to(ROOT)}: {sum(map(len, packages.values()))} packages in {len(packages)} locks")


if __name__ == "__main__":
    main()
