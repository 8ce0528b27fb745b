"""A caller's overrides: checked nested dicts, and the command line's ``a.b=c`` turned into the same. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.config.merging import merge
from nemo_gym.config.yaml_files import parse_yaml_value
from nemo_gym.errors import ConfigError

_SCALARS = (str, bool, int, float)


def checked_overrides(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """``overrides`` as plain nested dicts, copied, so that later changes by the caller reach nothing.

    Refused, with the path to it: a key with a dot in it, at any depth and inside lists too (merged as a dict it
    would be one key with a dot in its name, while on the command line the dot is a path); a key that is not a
    string; a value that YAML cannot hold.
    """
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise ConfigError(
            f"Overrides must be a nested dict such as {{'policy_base_url': 'http://...'}}; "
            f"found {type(overrides).__name__}."
        )
    return _checked_mapping(overrides, path="", ancestors=())


def _checked_mapping(node: Mapping[Any, Any], path: str, ancestors: tuple[int, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in node.items():
        if not isinstance(key, str):
            raise ConfigError(
                f"Override key {key!r}{_at(path)} is {_a(key)}; keys must be strings. Write {str(key)!r}."
            )
        key = str.__str__(key)
        if "." in key:
            raise ConfigError(_dotted_key_message(key, value, path))
        if not key:
            raise ConfigError(f"Override with an empty key{_at(path)}: a key needs at least one character.")
        result[key] = _checked(value, f"{path}.{key}" if path else key, (*ancestors, id(node)))
    return result


def _checked(value: Any, path: str, ancestors: tuple[int, ...]) -> Any:
    if value is None:
        return None
    if id(value) in ancestors:
        raise ConfigError(f"Override {path} contains itself; YAML cannot hold that.")
    if isinstance(value, Mapping):
        return _checked_mapping(value, path, ancestors)
    if isinstance(value, list | tuple):
        return [_checked(item, f"{path}[{i}]", (*ancestors, id(value))) for i, item in enumerate(value)]
    if type(value) in _SCALARS:
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"Override {path} is {value!r}; servers receive their configuration as JSON, which has finite "
                f"numbers only. Use null, a finite number, or the text {str(value)!r}."
            )
        return value
    raise ConfigError(_foreign_value_message(value, path))


def _foreign_value_message(value: Any, path: str) -> str:
    hint = ""
    if hasattr(value, "__fspath__"):
        hint = f" Write str(...): {value.__fspath__()!r}."
    elif isinstance(value, set | frozenset):
        hint = " Write a list."
    elif isinstance(value, _SCALARS):
        plain = next(kind for kind in _SCALARS if isinstance(value, kind))
        hint = f" Write {plain.__name__}(...)."
    return (
        f"Override {path} is {_a(value)}, which YAML cannot hold. Needed: None, bool, int, float, str, a list or a "
        f"dict.{hint}"
    )


def _dotted_key_message(key: str, value: Any, path: str) -> str:
    parts = key.split(".")
    if not all(parts):
        return f"Override key {key!r}{_at(path)} has a dot in it, which a key cannot have: a dict needs no paths."
    nested = "".join(f"{{{part!r}: " for part in parts) + _short(value) + "}" * len(parts)
    full_path = f"{path}.{key}" if path else key
    return (
        f"Override key {key!r}{_at(path)} has a dot in it: as a dict this would be one key with a dot in its name, "
        f"while on the command line {full_path}=... is a path. Write it nested: {nested}."
    )


def _short(value: Any) -> str:
    # Never the value's own text: it may be a secret, or a page long.
    return "..." if not isinstance(value, Mapping) else "{...}"


def _at(path: str) -> str:
    return f" in {path!r}" if path else ""


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def parse_cli_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """``key=value``, ``+key=value`` and ``++a.b=c`` as one nested dict; of two for a key, the later wins.

    Dots are paths. A value is read as YAML: ``1`` is a number, ``true`` a bool, ``null`` None, ``[a, b]`` a list,
    ``{a: 1}`` a dict, nothing after ``=`` the empty text.
    """
    result: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        path = key.removeprefix("++") if key.startswith("++") else key.removeprefix("+")
        if not equals:
            raise ConfigError(
                f"Cannot read the override {key!r}: needed key=value, such as policy_model_name=my-model or "
                f"++my_server.resources_servers.mcqa.domain=math."
            )
        if key.startswith("~"):
            raise ConfigError(
                f"Cannot read the override {argument!r}: '~' is not known here. To drop a key, set _delete_key beside "
                f"it: ++a.b._delete_key=c drops a.b.c."
            )
        parts = path.split(".")
        if not all(parts) or path != path.strip():
            raise ConfigError(
                f"Cannot read the override key {path!r}: needed names joined by single dots, such as a.b.c."
            )
        value = parse_yaml_value(text, where=f"override {path}") if text else ""
        for part in reversed(parts):
            value = {part: value}
        result = merge(result, value)
    return checked_overrides(result)
