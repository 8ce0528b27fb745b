"""Reading YAML: bytes to plain dicts, with file, line and column in every refusal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.errors import ConfigError

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FLOAT = re.compile(
    r"""[-+]?(?:\d[\d_]*)\.[\d_]*(?:[eE][-+]?\d+)?|[-+]?\d[\d_]*[eE][-+]?\d+|[-+]?\.\d[\d_]*(?:[eE][-+]?\d+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)""",
    re.VERBOSE,
)


class _ConfigLoader(_BASE):  # type: ignore[misc]
    """YAML as configs use it: keys are the text as written, each once; 1e-5 is a number; dates stay text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML reads it from the class
        first: [
            pair
            for pair in pairs
            if pair[0] not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
        ]
        for first, pairs in _BASE.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        _refuse_repeated_keys(node)
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


_ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$", re.VERBOSE), list("-+0123456789.")
)


def _refuse_repeated_keys(node: yaml.MappingNode) -> None:
    seen: dict[str, Any] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be plain text, not a list or a dict", key.start_mark
            )
        if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
            first = seen[key.value].start_mark.line + 1
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"the key {key.value!r} stands here a second time (first on line {first})",
                key.start_mark,
            )
        seen[key.value] = key


def load_yaml_file(path: Path) -> dict[str, Any]:
    """The dict in the YAML file at ``path``; an empty file is an empty dict."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the config file {path}: {error.strerror or error}.") from error
    return parse_yaml_dict(data, where=str(path))


def parse_yaml_dict(data: bytes | str, where: str) -> dict[str, Any]:
    """The dict that YAML ``data`` holds; ``where`` names it in errors."""
    if isinstance(data, bytes):
        try:
            data = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigError(
                f"{where}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8. Config files are UTF-8 text; "
                f"save the file in that encoding."
            ) from error
    value = parse_yaml_value(data, where)
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = {"list": "a list", "str": "a text"}.get(type(value).__name__, f"a {type(value).__name__}")
        raise ConfigError(f"{where}: the top level must be `key: value` pairs; found {kind}.")
    return value


def parse_yaml_value(text: str, where: str) -> Any:
    """The value that YAML ``text`` holds."""
    try:
        return yaml.load(text, Loader=_ConfigLoader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = error.problem or str(error)
        context = f" ({error.context})" if error.context else ""
        raise ConfigError(f"{where}{place}: cannot read this as YAML: {problem}{context}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: cannot read this as YAML: {error}.") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply to be read.") from error
