"""Finding and reading config files: search roots, ``config_paths`` trees, ``env.yaml``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemo_gym.config.home import expanded
from nemo_gym.config.yaml_files import load_yaml_file
from nemo_gym.errors import ConfigError

EXTRA_ROOTS_VARIABLE = "NEMO_GYM_EXTRA_ROOTS"
_KNOWN_FOLDERS = ("benchmarks", "images")
_PACKAGE = Path(__file__).resolve().parent.parent


def install_root() -> Path:
    """Where ``images/`` and ``benchmarks/`` of this installation lie.

    The checkout, when ``pyproject.toml``, ``images/`` and ``benchmarks/`` stand beside the package; otherwise the
    data inside the installed package.
    """
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and all((checkout / name).is_dir() for name in _KNOWN_FOLDERS):
        return checkout
    return _PACKAGE / "_data"


def is_package_data(root: Path) -> bool:
    """Whether ``root`` is the data of an installed package, where nothing may be written."""
    return root.resolve() == _PACKAGE / "_data"


def search_roots(search_dirs: Iterable[str | Path] = ()) -> list[Path]:
    """The folders a relative config path is looked for in, first to last, each once.

    ``search_dirs`` (each must be there), ``NEMO_GYM_EXTRA_ROOTS`` (folders that are not there are passed over, as
    in PATH), the working directory, the install root.
    """
    candidates = []
    for given in search_dirs:
        folder = expanded(given, "A search directory")
        if not folder.is_dir():
            raise ConfigError(f"Search directory {str(given)!r} is not a folder (looked at {folder.absolute()}).")
        candidates.append(folder)
    for text in os.environ.get(EXTRA_ROOTS_VARIABLE, "").split(os.pathsep):
        if text.strip() and (extra := expanded(text.strip(), f"A folder in {EXTRA_ROOTS_VARIABLE}")).is_dir():
            candidates.append(extra)
    candidates += [*_working_directory(), install_root()]
    return list(dict.fromkeys(folder.resolve() for folder in candidates))


def _working_directory() -> list[Path]:
    try:
        return [Path.cwd()]
    except FileNotFoundError:  # deleted under this process
        return []


def root_of_config(path: Path, roots: Sequence[Path]) -> Path:
    """The folder that relative paths in the config file at ``path`` are meant from.

    The search root under whose ``benchmarks/`` or ``images/`` it lies, else the folder that holds such a folder
    around it, else the innermost search root it lies in, else its own folder.
    """
    path = path.resolve()
    holding = [root for root in (r.resolve() for r in roots) if path.is_relative_to(root)]
    holding.sort(key=lambda root: len(root.parts), reverse=True)
    for root in holding:
        if path.relative_to(root).parts[0] in _KNOWN_FOLDERS:
            return root
    for folder in path.parents:
        if folder.name in _KNOWN_FOLDERS:
            return folder.parent
    return holding[0] if holding else path.parent


def find_config_file(path: str | Path, roots: Sequence[Path], *, wanted_by: str = "") -> Path:
    """The file that ``path`` names: itself when absolute, else under the first search root that has it."""
    wanted = expanded(path, f"A config file (wanted by {wanted_by})" if wanted_by else "A config file")
    places = [wanted] if wanted.is_absolute() else [root / wanted for root in roots]
    for place in places:
        if place.is_file():
            return place.resolve()
    lines = [f"No config file {str(path)!r}{f' (wanted by {wanted_by})' if wanted_by else ''}. Looked for:"]
    lines += [f"  {place}{' (this is a folder)' if place.is_dir() else ''}" for place in places]
    if "${" in str(path):
        lines.append("Interpolations are not read in config_paths: write the path out.")
    elif near := _nearest_path(wanted, places):
        lines.append(f"Did you mean {near}?")
    raise ConfigError("\n".join(lines))


def _nearest_path(wanted: Path, places: Sequence[Path]) -> str | None:
    """The path that was probably meant, from what stands beside the first step that is missing."""
    for place in places:
        if place.is_dir():
            inside = sorted(place.glob("*.yaml"))
            if inside:
                best = place / "config.yaml"
                return str(wanted / (best if best in inside else inside[0]).name)
            continue
        existing = next((folder for folder in place.parents if folder.is_dir()), None)
        if existing is None:
            continue
        rest = place.relative_to(existing).parts
        for name in get_close_matches(rest[0], sorted(child.name for child in existing.iterdir()), n=3, cutoff=0.6):
            candidate = existing.joinpath(name, *rest[1:])
            if candidate.is_file():
                depth = len(wanted.parts) - len(rest)
                return str(Path(*wanted.parts[:depth], name, *rest[1:]))
    return None


def load_config_tree(config_paths: Sequence[str | Path], roots: Sequence[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """The files named and everything they pull in through ``config_paths``, from low to high precedence.

    A file stands above all it pulls in; of siblings the later stands above the earlier and all that one pulled
    in. A file pulled in several times stands once, at its highest place. A circle is a ``ConfigError``. The
    contents come without ``config_paths``.
    """
    contents: dict[Path, dict[str, Any]] = {}
    pulled_in: dict[Path, list[Path]] = {}
    entries = [find_config_file(path, roots) for path in config_paths]
    for file in entries:
        _read_tree(file, roots, contents, pulled_in, chain=())
    descending: dict[Path, None] = {}
    for file in reversed(entries):
        _rank(file, pulled_in, descending)
    return [(file, contents[file]) for file in reversed(descending)]


def _read_tree(
    file: Path,
    roots: Sequence[Path],
    contents: dict[Path, dict[str, Any]],
    pulled_in: dict[Path, list[Path]],
    chain: tuple[Path, ...],
) -> None:
    """Read ``file`` and all it pulls in, each file once."""
    if file in chain:
        circle = [*chain[chain.index(file) :], file]
        raise ConfigError(
            "These config files pull one another in, in a circle:\n"
            + "\n".join(f"  {a}\n    config_paths -> {b}" for a, b in pairwise(circle))
            + "\nTake one of these entries out of its file's config_paths."
        )
    if file in contents:
        return
    content = contents[file] = load_yaml_file(file)
    paths = checked_config_paths(content.pop("config_paths", None), where=str(file))
    pulled_in[file] = [find_config_file(path, roots, wanted_by=str(file)) for path in paths]
    for further in pulled_in[file]:
        _read_tree(further, roots, contents, pulled_in, (*chain, file))


def _rank(file: Path, pulled_in: dict[Path, list[Path]], descending: dict[Path, None]) -> None:
    """Add ``file`` and what it pulls in, from high to low precedence: where a file comes first is its highest place,
    and all it pulls in has come by then too."""
    if file in descending:
        return
    descending[file] = None
    for further in reversed(pulled_in[file]):
        _rank(further, pulled_in, descending)


def checked_config_paths(value: Any, where: str) -> list[str]:
    """The entries of a ``config_paths`` value; None is none."""
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str | Path) and str(item) for item in value):
        raise ConfigError(
            f"{where}: config_paths must be a list of paths, such as [benchmarks/x/config.yaml]; found {value!r}."
        )
    return [str(item) for item in value]


def load_env_file() -> tuple[Path, dict[str, Any]] | None:
    """``env.yaml`` of the working directory, else of the install root, with what it holds; None without one."""
    for folder in (*_working_directory(), install_root()):
        path = folder / "env.yaml"
        if path.is_file():
            return path, load_yaml_file(path)
    return None
