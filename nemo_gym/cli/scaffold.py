"""Servers and benchmarks to start from: names checked, templates rendered, files written all or none."""

from __future__ import annotations

import contextlib
import keyword
import os
import re
import shutil
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError

TEMPLATES = Path(__file__).with_name("templates")
_SUFFIX = ".template"
# A benchmark's servers are called <name>_resources_server, and a server's name is a host name of 63 characters at most.
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Kind:
    """Something to start from: its template's folder, and where what is made of it belongs."""

    name: str
    called: str
    folder: str
    class_suffix: str = ""


RESOURCES_SERVER = Kind("resources_server", "resources server", "images/resources_servers", "Resources")
AGENT = Kind("agent", "agent", "images/responses_api_agents", "Agent")
MODEL = Kind("model", "model server", "images/responses_api_models", "Model")
BENCHMARK = Kind("benchmark", "benchmark", "benchmarks")
KINDS = (RESOURCES_SERVER, AGENT, MODEL, BENCHMARK)


def check_name(kind: Kind, name: str, roots: Sequence[Path]) -> None:
    """Refuse a name that Python, the config or the engine could not take, or that something there has already."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_"):
        fitting = (
            re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
            .lstrip("_0123456789")
            .rstrip("_")
        )
        hint = f" Did you mean {fitting}?" if fitting else ""
        raise ConfigError(
            f"The name of the {kind.called} has small letters, digits and _, begins with a letter and ends without _; "
            f"found {name!r}.{hint}"
        )
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"The name {name} has {len(name)} characters; the most are {_LONGEST_NAME}.")
    owner = _owner_of(name)
    if owner is not None:
        raise ConfigError(
            f"The {kind.called} cannot be called {name}: that is {owner}. Did you mean {name}_{kind.name}?"
        )
    # Two servers of one name do not fit into one config, of whatever type they are.
    rivals = (BENCHMARK,) if kind is BENCHMARK else (RESOURCES_SERVER, AGENT, MODEL)
    for root in roots:
        for rival in rivals:
            taken = root / rival.folder / name
            if taken.exists():
                raise ConfigError(f"The name {name} is taken, by the {rival.called} in {taken}. Choose another.")


def _owner_of(name: str) -> str | None:
    """Whose word a name is that nothing may have."""
    import yaml

    from nemo_gym.config.instances import POLICY_MODEL, RESERVED_KEYS

    if keyword.iskeyword(name):
        return "a word of Python"
    if yaml.safe_load(name) != name:  # on, yes, null, ...
        return "a value in YAML"
    if name in RESERVED_KEYS or name in (POLICY_MODEL, "registry"):
        return "a name with a meaning of its own in configs"
    return None


def class_name(kind: Kind, name: str) -> str:
    """``my_judge`` as ``MyJudgeResources``; an ending that it has already is not repeated."""
    camel = "".join(word.capitalize() for word in name.split("_"))
    return camel if camel.endswith(kind.class_suffix) else camel + kind.class_suffix


def render(kind: Kind, values: Mapping[str, str]) -> dict[str, str]:
    """The text of each file by its path in the folder. ``values``: ``name``, and what else the templates ask for."""
    name = values["name"]
    title = name.replace("_", " ").capitalize()
    filled = {"title": title, "class_name": class_name(kind, name), **values}
    folder = TEMPLATES / kind.name
    texts = {}
    for template in sorted(folder.rglob(f"*{_SUFFIX}")):
        path = template.relative_to(folder).as_posix().removesuffix(_SUFFIX).replace("NAME", name)
        texts[path] = string.Template(template.read_text(encoding="utf-8")).substitute(filled)
    return texts


def write_folder(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a folder that is not there yet, all of them or none; their paths."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    with _as_config_error(folder):
        try:
            for path, text in texts.items():
                (partial / path).parent.mkdir(parents=True, exist_ok=True)
                (partial / path).write_text(text, encoding="utf-8")
            partial.rename(folder)  # fails where a folder with something in it has come meanwhile
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return [folder / path for path in texts]


def server_values(kind: Kind, name: str, roots: Sequence[Path]) -> dict[str, str]:
    """What a benchmark's template needs to know of the server ``name``: its folder, its instance, its domain."""
    from nemo_gym.config.discovery import find_server_config
    from nemo_gym.config.yaml_files import load_yaml_file

    server_type = kind.folder.partition("/")[2]
    if "/" in name:
        raise ConfigError(f"The {kind.called} is given by the name of its folder; found {name!r}.")
    path = find_server_config(server_type, name, roots)
    for instance, entry in load_yaml_file(path).items():
        implementations: Any = entry.get(server_type) if isinstance(entry, Mapping) else None
        if isinstance(implementations, Mapping) and name in implementations:
            domain = (implementations[name] or {}).get("domain") or "other"
            return {kind.name: name, f"{kind.name}_instance": str(instance), "domain": str(domain)}
    raise ConfigError(f"{path} declares no {kind.called} {name}; needed: NAME: {{{server_type}: {{{name}: ...}}}}")


@contextlib.contextmanager
def _as_config_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"Cannot write {folder}: {error.strerror or error}.") from error
