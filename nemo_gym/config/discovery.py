"""Benchmarks and server images by name, over all search roots. Fast: listing reads small files and no library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from nemo_gym.config.instances import RESERVED_KEYS, SERVER_TYPES
from nemo_gym.config.paths import MISSING
from nemo_gym.config.yaml_files import load_yaml_file
from nemo_gym.errors import ConfigError

_LISTED = {
    "responses_api_models": ("model type", "models"),
    "responses_api_agents": ("agent", "agents"),
    "resources_servers": ("resources server", "resources-servers"),
    "environment_servers": ("environment server", "environment-servers"),
}


_CONFIG_TEXT = re.compile(
    rf"""^[{{\s]*["']?config_paths["']?\s*:|^[^#\n]*\b(?:{"|".join(SERVER_TYPES)})["']?\s*:""", re.MULTILINE
)


@dataclass(frozen=True)
class BenchmarkEntry:
    """A benchmark found under ``benchmarks/``. ``flavors`` are its further config files, named as in NAME/FLAVOR.

    ``num_rows`` and ``needs`` are what its data set says of itself: how many tasks it has, and what it takes beside a
    model (where its data come from, a model that calls tools, a judge). ``problem`` says why its config file could not
    be read; description and domain are then empty.
    """

    name: str
    path: Path
    description: str = ""
    domain: str | None = None
    flavors: tuple[str, ...] = ()
    problem: str | None = None
    num_rows: int | None = None
    needs: tuple[str, ...] = ()


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


Entry = TypeVar("Entry", BenchmarkEntry, ServerEntry)


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
        raise ConfigError(f"A {kind} is named NAME or NAME/FLAVOR; found {name!r}. `{command}` lists what there is.")
    for root in roots:
        base = root.joinpath(folder, *steps)
        for candidate in (base / "config.yaml", base.with_name(base.name + ".yaml")):
            if candidate.is_file() and (candidate.name == "config.yaml" or (len(steps) > 1 and _is_config(candidate))):
                return candidate.resolve()
    raise ConfigError(_unknown(folder, name, steps, roots, kind, command))


def _unknown(folder: str, name: str, steps: list[str], roots: Sequence[Path], kind: str, command: str) -> str:
    names = [found for found, _ in _folders(folder, roots)]
    if len(steps) > 1 and steps[0] in names:
        flavors = _all_flavors(folder, steps[0], roots)
        near = [f"{steps[0]}/{f}" for f in get_close_matches("/".join(steps[1:]), flavors, n=3, cutoff=0.6)]
        known = f"{steps[0]!r} has {'the flavors ' + ', '.join(flavors) if flavors else 'no flavors'}."
        message = f"Unknown flavor {'/'.join(steps[1:])!r} of the {kind} {steps[0]!r}. {known}"
    else:
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        message = f"Unknown {kind} {name!r}."
        if not near:
            message += _listing(names)
    if near:
        message += f" Did you mean {' or '.join(near)}?"
    if name.endswith((".yaml", ".yml")):
        message += f" A {kind} is given by its name, without .yaml; a config file of your own with --config."
    looked = ", ".join(str(root / folder) for root in roots)
    return f"{message}\nLooked in {looked}. `{command}` lists what there is."


def _listing(names: Sequence[str]) -> str:
    """Those there are, as a sentence to follow another; of many, the first."""
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f" There {'is' if len(names) == 1 else 'are'} {shown}." if names else ""


def list_names(folder: str, roots: Sequence[Path]) -> list[str]:
    """Every NAME and NAME/FLAVOR below ``folder`` (``benchmarks``, ``images/<server type>``). Parses no file."""
    names = [name for name, _ in _folders(folder, roots)]
    return sorted([*names, *(f"{name}/{flavor}" for name in names for flavor in _all_flavors(folder, name, roots))])


def list_benchmarks(roots: Sequence[Path]) -> list[BenchmarkEntry]:
    """All benchmarks of ``roots`` by name; of two with one name, that of the first root."""
    servers = {entry.name: entry for entry in list_servers("resources_servers", roots)}
    return [
        _benchmark_entry(name, path, _all_flavors("benchmarks", name, roots), servers)
        for name, path in _folders("benchmarks", roots)
    ]


def list_servers(server_type: str, roots: Sequence[Path]) -> list[ServerEntry]:
    """All server images of one type in ``roots`` by name; of two with one name, that of the first root."""
    folder = f"images/{server_type}"
    return [
        _server_entry(name, path, server_type, _all_flavors(folder, name, roots))
        for name, path in _folders(folder, roots)
    ]


def describe_flavor(entry: Entry, flavor: str, path: Path) -> Entry:
    """The entry of ``NAME/FLAVOR``, whose config file is ``path``: that of NAME, with what the file says itself."""
    named = replace(entry, name=f"{entry.name}/{flavor}", path=path, flavors=())
    try:
        content = load_yaml_file(path)
    except ConfigError as error:
        return replace(named, problem=str(error))
    server_type = entry.server_type if isinstance(entry, ServerEntry) else "resources_servers"
    settings = [settings for _, settings in _implementations(content, server_type)]
    description = next(filter(None, (_text(one.get("description")) for one in settings)), entry.description)
    domain = next(filter(None, (_text(one.get("domain")) for one in settings)), entry.domain)
    facts = _dataset_facts(content) if isinstance(entry, BenchmarkEntry) else {}
    return replace(named, description=description, domain=domain, **facts)


def _folders(folder: str, roots: Sequence[Path]) -> list[tuple[str, Path]]:
    """Name and config file of each folder below ``folder`` that has a ``config.yaml``."""
    found: dict[str, Path] = {}
    for root in roots:
        for path in (root / folder).glob("*/config.yaml"):
            found.setdefault(path.parent.name, path)
    return sorted(found.items())


def _benchmark_entry(
    name: str, path: Path, flavors: tuple[str, ...], servers: Mapping[str, ServerEntry]
) -> BenchmarkEntry:
    try:
        content = load_yaml_file(path)
    except ConfigError as error:
        return BenchmarkEntry(name, path, flavors=flavors, problem=str(error))
    description, domain = "", None
    named = [servers[found] for found in _named_servers(content) if found in servers]
    for implementation, settings in _implementations(content, "resources_servers"):
        description = description or _text(settings.get("description"))
        domain = domain or _text(settings.get("domain")) or None
        if implementation in servers:
            named.insert(0, servers[implementation])
    for server in named:
        domain = domain or server.domain
    description = description or _first_paragraph(path.parent / "README.md")
    described = description or (named[0].description if named else "")
    return BenchmarkEntry(name, path, described, domain, flavors, **_dataset_facts(content))


def _dataset_facts(content: Mapping[str, Any]) -> dict[str, Any]:
    """``num_rows`` and ``needs`` of the benchmark's data set, where the file itself says them."""
    for _, settings in _implementations(content, "responses_api_agents"):
        datasets = settings.get("datasets")
        for dataset in datasets if isinstance(datasets, list) else ():
            if isinstance(dataset, Mapping) and dataset.get("type") == "benchmark":
                num_rows, needs = dataset.get("num_rows"), dataset.get("needs")
                facts: dict[str, Any] = {"num_rows": num_rows} if isinstance(num_rows, int) else {}
                return facts | ({"needs": tuple(map(str, needs))} if isinstance(needs, list) else {})
    return {}


def _server_entry(name: str, path: Path, server_type: str, flavors: tuple[str, ...]) -> ServerEntry:
    try:
        content = load_yaml_file(path)
    except ConfigError as error:
        return ServerEntry(name, path, server_type, flavors=flavors, problem=str(error))
    settings = next((s for i, s in _implementations(content, server_type) if i == name), {})
    description = _text(settings.get("description")) or _first_paragraph(path.parent / "README.md")
    return ServerEntry(name, path, server_type, description, _text(settings.get("domain")) or None, flavors)


def _implementations(content: Mapping[str, Any], server_type: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Implementation and settings of each server of ``server_type`` that a single file declares."""
    for name, entry in content.items():
        node = entry.get(server_type) if isinstance(entry, Mapping) and name not in RESERVED_KEYS else None
        for implementation, settings in node.items() if isinstance(node, Mapping) else ():
            yield implementation, settings if isinstance(settings, Mapping) else {}


def _named_servers(content: Mapping[str, Any]) -> Iterator[str]:
    """The resources servers whose folders a file's ``config_paths`` point into."""
    paths = content.get("config_paths")
    for path in paths if isinstance(paths, list) else ():
        parts = Path(path).parts if isinstance(path, str) else ()
        if "resources_servers" in parts[:-1]:
            yield parts[parts.index("resources_servers") + 1]


def _text(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) and value != MISSING else ""


def _first_paragraph(readme: Path) -> str:
    """The first lines of prose in a README, as one line; empty without one."""
    try:
        lines = readme.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    prose: list[str] = []
    for line in lines:
        line = line.strip()
        if line and not line.startswith(("#", "[![", "![", "<", "```", "---", "===", "|")):
            prose.append(line)
        elif prose:
            break
    return " ".join(prose)


def _all_flavors(folder: str, name: str, roots: Sequence[Path]) -> tuple[str, ...]:
    """The flavors of ``name`` in all roots: a root may add some to a benchmark that another root has."""
    return tuple(sorted({flavor for root in roots for flavor in _flavors(root / folder / name)}))


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
    return _CONFIG_TEXT.search(text) is not None
