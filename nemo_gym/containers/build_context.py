"""What goes into an image: the files of a build context, their hash, and the tar sent to the engine.

Pure after the reading of files. Owner, time and mode are fixed, so that the same content gives the same bytes and
the same hash on every machine, after ``touch`` and in another user's checkout too.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.containers.requirements import parse_requirements
from nemo_gym.errors import ConfigError

CA_BUNDLE = "ca-bundle.crt"
"""The host's certificate authorities, for downloads during the build. Not part of the hash, nor of the image."""

# beside app.py: what the server does not need when it runs (data: rows of its benchmark, which callers send)
_LEFT_OUT = frozenset({"tests", "README.md", "data"})

# app.py imports its folder's other modules by the names they have on the host, images.<server type>.<implementation>.x,
# or, where the folder was written elsewhere, <server type>.<implementation>.x
_OWN_PACKAGE = b"""\
from pathlib import Path

__path__ = [str(Path(__file__).parents[%d])]
"""


@dataclass(frozen=True, slots=True)
class ContextFile:
    """One file of a context."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class BuildContext:
    """An image to be: its repository name, and the files it is built from, by path in the context.

    ``source`` is the folder they come from, for the image's labels. ``notices`` are sentences for who builds it.
    """

    repository: str
    files: Mapping[str, ContextFile]
    source: Path | None = None
    notices: tuple[str, ...] = ()

    def digest(self) -> str:
        """Sha256 hex over names, modes and contents; the host's CA bundle does not count."""
        total = hashlib.sha256()
        for path in sorted(self.files):
            if path == CA_BUNDLE:
                continue
            file = self.files[path]
            content = hashlib.sha256(file.content).hexdigest()
            total.update(f"{path}\0{int(file.executable)}\0{content}\n".encode(errors="surrogateescape"))
        return total.hexdigest()

    def to_tar(self) -> io.BytesIO:
        """The context as an uncompressed tar, positioned at its start."""
        buffer = io.BytesIO()
        # PAX holds names of any length; its encoding is fixed, so that the caller's locale does not matter
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
            for path in sorted(self.files):
                file = self.files[path]
                entry = tarfile.TarInfo(path)
                entry.size = len(file.content)
                entry.mode = 0o755 if file.executable else 0o644
                tar.addfile(entry, io.BytesIO(file.content))
        buffer.seek(0)
        return buffer


def load_base_context(package: Path, dockerfile: Path, requirements: Path, ca_bundle: bytes) -> BuildContext:
    """The base of every server image: the server part of this package and what it imports."""
    part = [package / name for name in ("__init__.py", "errors.py", "py.typed", "secret_keys.py")]
    part += sorted((package / "servers").rglob("*.py"))
    files = {f"nemo_gym/{path.relative_to(package).as_posix()}": _read(path) for path in part}
    files["Dockerfile"] = _read(dockerfile)
    files["requirements.txt"] = _read(requirements)
    files[CA_BUNDLE] = ContextFile(ca_bundle)
    return BuildContext("nemo-gym/base", files, package)


def load_server_context(folder: Path, repository: str, dockerfile: Path, ca_bundle: bytes) -> BuildContext:
    """A server's folder, with its own ``Dockerfile`` where it has one, else the one given.

    An own ``Dockerfile`` that does not name ``BASE_IMAGE`` was written for no base image of ours: it gets the folder as
    ``docker build FOLDER`` would give it. Raises ``ConfigError`` when the folder holds no server, or its requirements
    are such as the given ``Dockerfile`` cannot install.
    """
    own = folder / "Dockerfile"
    if not (folder / "app.py").is_file() and not own.is_file():
        raise ConfigError(f"{folder} holds no server image: it needs an app.py, or a Dockerfile of its own.")
    if own.is_file() and b"BASE_IMAGE" not in own.read_bytes():
        return BuildContext(repository, _files_in(folder, left_out=frozenset()), folder)
    files = {f"app/{path}": file for path, file in _files_in(folder, left_out=_LEFT_OUT).items()}
    files |= _package_of_modules(folder, files)
    files["Dockerfile"] = _read(own if own.is_file() else dockerfile)
    requirements = folder / "requirements.txt"
    files["requirements.txt"] = _read(requirements) if requirements.is_file() else ContextFile(b"")
    files[CA_BUNDLE] = ContextFile(ca_bundle)
    notices: tuple[str, ...] = ()
    if requirements.is_file() and not own.is_file():
        wanted = parse_requirements(requirements)
        files["requirements.txt"], notices = ContextFile(wanted.text.encode()), wanted.notices
    return BuildContext(repository, files, folder, notices)


def _package_of_modules(folder: Path, files: Mapping[str, ContextFile]) -> dict[str, ContextFile]:
    """What lets a folder's modules import one another by their whole names."""
    modules = [file.content for path, file in files.items() if path.endswith(".py")]
    if not any(path.endswith(".py") and path != "app/app.py" for path in files):
        return {}
    server_type, implementation = folder.parent.name, folder.name
    packages = {f"app/images/{server_type}/{implementation}/__init__.py": ContextFile(_OWN_PACKAGE % 3)}
    elsewhere = re.compile(rf"(?<![\w.]){re.escape(server_type)}\.{re.escape(implementation)}\b".encode())
    if any(elsewhere.search(module) for module in modules):
        packages[f"app/{server_type}/{implementation}/__init__.py"] = ContextFile(_OWN_PACKAGE % 2)
    return packages


def _files_in(folder: Path, left_out: frozenset[str]) -> dict[str, ContextFile]:
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _is_left_out(path.relative_to(folder), left_out)
    }


def repository_name(server_type: str, implementation: str) -> str:
    """A repository name that the engine accepts: lower case, single separators."""
    parts = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "server" for part in (server_type, implementation)]
    return "/".join(["nemo-gym", *parts])


def _is_left_out(path: Path, left_out: frozenset[str]) -> bool:
    if path.parts[0] in left_out:
        return True
    return any(part == "__pycache__" or part.startswith(".") or part.endswith(".pyc") for part in path.parts)


def _read(path: Path) -> ContextFile:
    return ContextFile(path.read_bytes(), executable=bool(path.stat().st_mode & stat.S_IXUSR))
