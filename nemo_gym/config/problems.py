"""What is wrong with a resolved config, in sentences that say what to type. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from nemo_gym.config.instances import (
    POLICY_KEYS,
    POLICY_MODEL,
    RESERVED_KEYS,
    SERVER_TYPES,
    ServerRef,
    iter_server_refs,
)
from nemo_gym.config.interpolation import BrokenReference, find_targets
from nemo_gym.config.merging import Layer
from nemo_gym.config.paths import ABSENT, MISSING, Path, how_to_set, iter_leaves, join, kind_of, lookup
from nemo_gym.config.server_entries import iter_entry_problems, looks_like_server, server_type_of

# Keys of model endpoints: they matter only to what refers to them, and only where it is served.
_ENDPOINT_PREFIXES = ("policy_", "judge_")

_POLICY_OPTIONS = {
    "policy_base_url": ("--model-url", "URL"),
    "policy_api_key": ("--model-api-key", "KEY"),
    "policy_model_name": ("--model", "NAME"),
}


@dataclass(frozen=True)
class ConfigFacts:
    """What the checks look at: the tree with its interpolations, the same resolved, and how it came about."""

    tree: Mapping[str, Any]
    plain: Mapping[str, Any]
    broken: Sequence[BrokenReference]
    moved: Mapping[Path, Sequence[Path]]
    sketched: frozenset[str]
    serving: bool
    layers: Sequence[Layer]

    def origin(self, path: Path) -> str:
        """Where ``path`` is set, as `` (in <file>)``; empty where that cannot be told."""
        for layer in reversed(self.layers):
            if lookup(layer.content, path) is not ABSENT:
                return f" (in {layer.origin})"
        for source, places in self.moved.items():
            for place in places:
                if path[: len(place)] == place:
                    return self.origin((*source, *path[len(place) :]))
        return ""

    def taken_over(self, path: Path) -> Path | None:
        """Where what stood at ``path`` stands since an ``_inherit_from`` took it over, if one did."""
        for source, places in self.moved.items():
            if path[: len(source)] == source:
                return (*places[0], *path[len(source) :])
        return None


def is_tolerated(
    reference: BrokenReference, tree: Mapping[str, Any], sketched: frozenset[str], *, serving: bool
) -> bool:
    """Whether a reference that leads nowhere may stay ``???`` for now: only while planning."""
    if serving or reference.problem:
        return False
    if reference.variable:
        return _may_be_open(reference.holder[0], tree)
    root = reference.target[0] if reference.target else ""
    if root.startswith("policy_") or root in sketched:
        return True
    return reference.to_be_set and _may_be_open(root, tree)


def _may_be_open(root: str, tree: Mapping[str, Any]) -> bool:
    """Whether ``???`` under this top-level key is accepted by planning."""
    return root.startswith(_ENDPOINT_PREFIXES) or looks_like_server(root, tree.get(root))


def list_problems(facts: ConfigFacts) -> list[str]:
    """Everything that is wrong, most basic first."""
    checks: tuple[Callable[[ConfigFacts], Iterator[str]], ...] = (
        _entries,
        _missing_values,
        _policy_keys,
        _broken_references,
        _server_references,
        _head_server,
    )
    return [problem for check in checks for problem in check(facts)]


def _entries(facts: ConfigFacts) -> Iterator[str]:
    for name, problem in iter_entry_problems(facts.plain, sketched=facts.sketched):
        yield f"{problem}{_meant_server(name, facts) or facts.origin((name,))}"


def _meant_server(name: str, facts: ConfigFacts) -> str:
    """A hint for an entry that exists only because an override misspelt a server's name."""
    if not all(layer.by_caller for layer in facts.layers if name in layer.content):
        return ""
    place = facts.taken_over((name,))
    others = [other for other in facts.plain if other != name and looks_like_server(other, facts.plain[other])]
    near = [join(place)] if place else get_close_matches(name, others, n=1, cutoff=0.7)
    return f" Did you mean the server {near[0]!r}?" if near else ""


def _missing_values(facts: ConfigFacts) -> Iterator[str]:
    """Every ``???`` that must have a value by now, in one problem."""
    needed = {reference.target for reference in facts.broken if reference.to_be_set}
    missing = [
        path
        for path, value in iter_leaves(facts.tree)
        if value == MISSING and _must_be_set(path, facts, needed_by_other=path in needed)
    ]
    if not missing:
        return
    noun = "A value is" if len(missing) == 1 else f"{len(missing)} values are"
    lines = [f"{noun} still ??? and must be set, by the caller or in env.yaml:"]
    for path in missing:
        lines += [f"  {join(path)}{facts.origin(path)}", f"      {how_to_set(path, facts.tree)}"]
    yield "\n".join(lines)


def _must_be_set(path: Path, facts: ConfigFacts, *, needed_by_other: bool) -> bool:
    root = path[0]
    if root in POLICY_KEYS:
        return False  # told by _policy_keys
    if not facts.serving:
        return not _may_be_open(root, facts.tree) and root not in facts.sketched
    return needed_by_other or not root.startswith(_ENDPOINT_PREFIXES) or looks_like_server(root, facts.tree[root])


def _policy_keys(facts: ConfigFacts) -> Iterator[str]:
    """The policy keys that something refers to and that hold no usable value."""
    holders: dict[str, list[str]] = {}
    for reference in facts.broken:
        if len(reference.target) == 1 and reference.target[0] in POLICY_KEYS:
            holders.setdefault(reference.target[0], []).append(join(reference.holder))
    for key in POLICY_KEYS:
        if key in holders:
            needed = ", ".join(holders[key])
            yield f"{key} is missing: set it with {_policy_spellings(key)}. Needed by {needed}."
        elif facts.serving and _is_referred_to(key, facts) and (found := _unusable(key, facts.plain[key])):
            yield f"{key} must be a text; found {found}. Set it with {_policy_spellings(key)}."


def _policy_spellings(key: str) -> str:
    option, value = _POLICY_OPTIONS[key]
    return f"{how_to_set((key,), value=value)} (there also {option} {value}), or as `{key}: {value}` in env.yaml"


def _unusable(key: str, value: Any) -> str:
    if isinstance(value, str):
        return "an empty one" if not value.strip() and key != "policy_api_key" else ""
    if value is None:
        return "" if key == "policy_api_key" else "null"
    return f"{kind_of(value)} (put it in quotes)"


def _is_referred_to(key: str, facts: ConfigFacts) -> bool:
    texts = ((path, value) for path, value in iter_leaves(facts.tree) if isinstance(value, str) and "${" in value)
    return key in facts.plain and any((key,) in find_targets(path, value) for path, value in texts)


def _broken_references(facts: ConfigFacts) -> Iterator[str]:
    for reference in facts.broken:
        holder, target = reference.holder, reference.target
        if reference.to_be_set or (len(target) == 1 and target[0] in POLICY_KEYS):
            continue
        at = f"{join(holder)}{facts.origin(holder)}"
        if reference.variable:
            yield (
                f"{at} reads the environment variable {reference.variable}, which is not set. Type `export "
                f"{reference.variable}=...`, or give a default: ${{oc.env:{reference.variable},default}}."
            )
        elif reference.problem:
            yield f"{at} {reference.problem}."
        else:
            yield f"{at} refers to ${{{'.'.join(target)}}}, but {_lack(target, facts)}"


def _lack(target: Path, facts: ConfigFacts) -> str:
    """Why ``target`` is not there, and what was probably meant."""
    place = facts.taken_over(target)
    if place is not None and lookup(facts.plain, place) is not ABSENT:
        return (
            f"{join(target)} stands at {join(place)} since an _inherit_from took it over. Write ${{{'.'.join(place)}}}."
        )
    depth = 0
    while depth < len(target) - 1 and lookup(facts.plain, target[: depth + 1]) is not ABSENT:
        depth += 1
    parent = lookup(facts.plain, target[:depth])
    keys = list(parent) if isinstance(parent, Mapping) else []
    near = get_close_matches(target[depth], keys, n=1, cutoff=0.6)
    lack = f"there is no {join(target)} in the configuration."
    if near:
        return f"{lack} Did you mean ${{{'.'.join((*target[:depth], near[0], *target[depth + 1 :]))}}}?"
    return f"{lack} Set it with {how_to_set(target, facts.plain)}."


def _server_references(facts: ConfigFacts) -> Iterator[str]:
    servers = {name: kind for name, entry in facts.plain.items() if (kind := _server_type(name, entry))}
    for name in servers:
        for path, ref in iter_server_refs(facts.plain[name], (name,)):
            problem = _reference_problem(ref, servers, facts)
            if problem:
                yield f"{join(path)}{facts.origin(path)} refers to the server {ref.name!r} of {ref.type}, {problem}"
        yield from _misspelt_types(name, facts)


def _server_type(name: str, entry: Any) -> str | None:
    return server_type_of(entry) if name not in RESERVED_KEYS else None


def _reference_problem(ref: ServerRef, servers: Mapping[str, str], facts: ConfigFacts) -> str:
    found = servers.get(ref.name)
    if found == ref.type or ref.name == MISSING or (ref.name in facts.sketched and found is None):
        return ""
    if found is not None:
        return f"but {ref.name!r} exists under another type, {found}. Write `type: {found}`, or name another server."
    place = facts.taken_over((ref.name,))
    if place is not None:
        return f"but that one was taken over by {place[0]!r} through _inherit_from. Write `name: {place[0]}`."
    if ref.name == POLICY_MODEL:
        return (
            "which is not defined. Choose a model server with --model-type (`gym list models` shows them), or name "
            "the config file of one in config_paths."
        )
    same = [name for name, kind in servers.items() if kind == ref.type]
    near = get_close_matches(ref.name, same, n=1, cutoff=0.5)
    if near:
        return f"which does not exist. Did you mean {near[0]!r}?"
    other = get_close_matches(ref.name, servers, n=1, cutoff=0.8)
    if other:
        return f"which does not exist. Did you mean {other[0]!r} (of {servers[other[0]]})?"
    known = f"{ref.type} has {', '.join(same)}." if same else f"No server of {ref.type} is declared."
    return f"which does not exist. {known}"


def _misspelt_types(name: str, facts: ConfigFacts) -> Iterator[str]:
    """References whose ``type`` was meant as a server type; other dicts with ``type`` and ``name`` are none."""
    for path, value in iter_leaves(facts.plain[name], (name,)):
        if path[-1] != "type" or not isinstance(value, str) or value in SERVER_TYPES:
            continue
        named = lookup(facts.plain, (*path[:-1], "name"))
        near = get_close_matches(value, SERVER_TYPES, n=1, cutoff=0.85)
        if isinstance(named, str) and (near or (value.endswith("_servers") and named in facts.plain)):
            meant = f"Did you mean {near[0]!r}?" if near else f"Server types are {', '.join(SERVER_TYPES)}."
            yield f"{join(path)}{facts.origin(path)}: unknown server type {value!r}. {meant}"


def _head_server(facts: ConfigFacts) -> Iterator[str]:
    value = facts.plain.get("head_server")
    if value is None or value == MISSING:
        return
    if not isinstance(value, Mapping):
        yield f"head_server must be {{host: ..., port: ...}}; found {kind_of(value)}."
        return
    port = value.get("port")
    if port not in (None, MISSING) and (isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536):
        yield f"head_server.port must be a number from 0 to 65535; found {port!r}."
