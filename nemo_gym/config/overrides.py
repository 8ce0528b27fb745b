"""A caller's overrides: checked nested dicts, and the command line's ``a.b=c`` turned into the same. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nemo_gym.config.instances import POLICY_KEYS
from nemo_gym.config.merging import merge
from nemo_gym.config.yaml_files import parse_yaml_value, parse_yaml_word
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
    try:
        return _checked_mapping(overrides, path="", ancestors=())
    except RecursionError:
        raise ConfigError("The overrides are nested too deeply to be read.") from None


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
    ``{a: 1}`` a dict; nothing after ``=`` is the empty text. A value that is no list, dict or quoted text is one
    word or sentence as it stands, with colons and ``#`` in it too. Policy keys are always texts.
    """
    result: dict[str, Any] = {}
    for argument in arguments:
        steps, text = _split_argument(argument)
        value = _cli_value(text, steps)
        nested: dict[str, Any] = {steps[-1]: value}
        for step in reversed(steps[:-1]):
            nested = {step: nested}
        result = merge(result, nested)
    return checked_overrides(result)


def _split_argument(argument: str) -> tuple[list[str], str]:
    key, equals, text = argument.partition("=")
    path = key.removeprefix("+").removeprefix("+")
    if not equals:
        raise ConfigError(
            f"Cannot read the override {argument!r}: needed key=value, such as policy_model_name=my-model, or "
            f"++a.b=value for a key inside others."
        )
    if path.startswith("~"):
        raise ConfigError(
            f"Cannot read the override {argument!r}: there is no '~' here. To drop the key a.b, type ++a._delete_key=b."
        )
    steps = path.split(".")
    if not all(steps) or any(step != step.strip() for step in steps):
        raise ConfigError(f"Cannot read the override key {path!r}: needed names joined by single dots, as in a.b.c.")
    return steps, text


def _cli_value(text: str, steps: list[str]) -> Any:
    where = f"override {'.'.join(steps)}"
    stripped = text.strip()
    if stripped[:1] in ("[", "{", '"', "'"):
        return parse_yaml_value(stripped, where)
    if not stripped or (len(steps) == 1 and steps[0] in POLICY_KEYS and stripped not in ("null", "~")):
        return stripped
    return parse_yaml_word(stripped)
