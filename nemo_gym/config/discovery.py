"""Benchmarks and server images by name, over all search roots. Fast: listing reads small files and no library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nemo_gym.config.instances import SERVER_TYPES
from nemo_gym.config.yaml_files import load_yaml_file
from nemo_gym.errors import ConfigError

_LISTED = {
    "responses_api_models": ("model type", "models"),
    "responses_api_agents": ("agent", "agents"),
    "resources_servers": ("resources server", "resources-servers"),
    "environment_servers": ("environment server", "environment-servers"),
}


@dataclass(frozen=True)
class BenchmarkEntry:
    """A benchmark found under ``benchmarks/``. ``flavors`` are its further config files, named as in NAME/FLAVOR.

    ``problem`` says why its config file could not be read; the other fields are then empty.
    """

    name: str
    path: Path
    description: str = ""
    domain: str | None = None
    flavors: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class ServerEntry:
    """A server image found under ``images/<server type>/``."""

    name: str
    path: Path
    server_type: str
    description: str = ""
    domain: str | None = None
    flavors: tuple[str, ...] = ()
    problem: str | None = None


def find_benchmark_config(name: str, roots: Sequence[Path]) -> Path:
    """The config file of the benchmark ``NAME[/FLAVOR]`` in the first root that has it."""
    return _find("benchmarks", name, roots, kind="benchmark", command="gym list benchmarks")


def find_server_config(server_type: str, name: str, roots: Sequence[Path]) -> Path:
    """The config file of the server image ``name`` (``NAME/FLAVOR`` for a further file of its folder)."""
    kind, listed = _LISTED[server_type]
    return _find(f"images/{server_type}", name, roots, kind=kind, command=f"gym list {listed}")


def find_model_config(model_type: str, roots: Sequence[Path]) -> Path:
    """The config file of the model server ``model_type``, a folder under ``images/responses_api_models``."""
    return find_server_config("responses_api_models", model_type, roots)


def _find(folder: str, name: str, roots: Sequence[Path], *, kind: str, command: str) -> Path:
    steps = name.split("/") if isinstance(name, str) else []
    if not steps or any(step in ("", ".", "..") or "\\" in step for step in steps):
        raise ConfigError(
            f"A {kind} is named NAME or NAME/FLAVOR; found {name!r}. `{command}` lists what there is."
        )
    for root in roots:
        base = root.joinpath(folder, *steps)
        for candidate in (base / "config.yaml", base.with_name(base.name + ".yaml")):
            if candidate.is_file() and (len(steps) > 1 or candidate.name == "config.yaml"):
                return candidate.resolve()
    raise ConfigError(_unknown(folder, name, steps, roots, kind, command))


def _unknown(folder: str, name: str, steps: list[str], roots: Sequence[Path], kind: str, command: str) -> str:
    names = _names(folder, roots)
    if len(steps) > 1 and steps[0] in names:
        flavors = sorted({f for root in roots for f in _flavors(root / folder / steps[0])})
        near = [f"{steps[0]}/{f}" for f in get_close_matches("/".join(steps[1:]), flavors, n=3, cutoff=0.5)]
        known = f"{steps[0]!r} has {'the flavors ' + ', '.join(flavors) if flavors else 'no flavors'}."
        message = f"Unknown flavor {'/'.join(steps[1:])!r} of the {kind} {steps[0]!r}. {known}"
    else:
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        message = f"Unknown {kind} {name!r}."
        if not near:
            message += (
                f" There is {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}." if names else ""
            )
        if name.endswith((".yaml", ".yml")):
            message += " A config file is given with --config, a benchmark by its name."
    if near:
        message += f" Did you mean {' or '.join(near)}?"
    looked = ", ".join(str(root / folder) for root in roots)
    return f"{message}\nLooked in {looked}. `{command}` lists what there is."


def _names(folder: str, roots: Iterable[Path]) -> list[str]:
    found = {path.parent.name for root in roots for path in (root / folder).glob("*/config.yaml")}
    return sorted(found)


def _flavors(folder: Path) -> list[str]:
    """The further config files in a benchmark's or server's folder, as the FLAVOR of NAME/FLAVOR."""
    found = set()
    for path in folder.rglob("*.yaml"):
        if path == folder / "config.yaml" or not _is_config(path):
            continue
        relative = path.relative_to(folder)
        found.add(str(relative.parent if path.name == "config.yaml" else relative.with_suffix("")))
    return sorted(found)


def _is_config(path: Path) -> bool:
    """Whether a YAML file is a config (and no prompt or data file), judged by its text, as parsing is slower."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return (
        text.startswith("config_paths:")
        or "\nconfig_paths:" in text
        or any(f"  {t}:" in text for t in SERVER_TYPES)
    )
