"""Reading YAML: bytes to plain dicts, with file, line and column in every refusal.

Configs are YAML as people mean it, in five places stricter or plainer than PyYAML's default: a key is the text as
written (``1``, ``on``), and stands once; ``1e-5`` is a number; dates, ``010`` and ``1:30`` are texts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.config.paths import kind_of
from nemo_gym.errors import ConfigError

_TAG = "tag:yaml.org,2002:"
_MOST_VALUES = 1_000_000
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FLOAT = re.compile(
    r"""(?:[-+]?(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?|[-+]?\d[\d_]*[eE][-+]?\d+
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z""",
    re.VERBOSE,
)
_INT = re.compile(r"(?:[-+]?(?:0|[1-9][\d_]*)|[-+]?0x[\da-fA-F][\da-fA-F_]*|[-+]?0b[01][01_]*)\Z")


class _ConfigLoader(_BASE):  # type: ignore[misc]
    """PyYAML's safe loader with the rules of this module."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - where PyYAML looks for it
        first: [
            (tag, pattern) for tag, pattern in pairs if tag not in (_TAG + "float", _TAG + "int", _TAG + "timestamp")
        ]
        for first, pairs in _BASE.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:  # a text that an explicit tag calls a number
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        _check_keys(node)
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


_ConfigLoader.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))
_ConfigLoader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def _check_keys(node: yaml.MappingNode) -> None:
    first_line: dict[str, int] = {}
    for key, _ in node.value:
        mark = key.start_mark
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be a text, not a list or a dict", problem_mark=mark)
        if key.tag == _TAG + "merge":
            continue
        if key.value in first_line:
            problem = f"the key {key.value!r} stands here again (first on line {first_line[key.value]})"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        first_line[key.value] = mark.line + 1


def load_yaml_file(path: Path) -> dict[str, Any]:
    """The dict in the YAML file at ``path``; an empty file is an empty dict."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the config file {path}: {error.strerror or error}.") from error
    return parse_yaml_dict(data, where=str(path))


def parse_yaml_dict(data: bytes | str, where: str) -> dict[str, Any]:
    """The dict that YAML ``data`` holds; ``where`` names it in errors."""
    value = parse_yaml_value(_decoded(data, where) if isinstance(data, bytes) else data, where)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: the top level must be `key: value` pairs; found {kind_of(value)}.")
    return value


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{where}, line {data.count(b'%c' % 10, 0, error.start) + 1}, column {error.start - line_start + 1}: "
            f"byte 0x{data[error.start]:02x} is not UTF-8. Config files are UTF-8 text: save it in that encoding."
        ) from error


def parse_yaml_value(text: str, where: str) -> Any:
    """The value that YAML ``text`` holds: dicts, lists, texts, finite numbers, true, false and null."""
    try:
        value = yaml.load(text, Loader=_ConfigLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = _place(text, mark) if mark is not None else (1, 1)
        context = f" ({error.context})" if error.context else ""
        raise ConfigError(
            f"{where}, line {line}, column {column}: not valid YAML: {error.problem or error}{context}."
            f"{_quoting_hint(text, line)}"
        ) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        column = error.position - before.rfind("\n")
        raise ConfigError(
            f"{where}, line {before.count(chr(10)) + 1}, column {column}: not valid YAML: a text file has no "
            f"character {text[error.position : error.position + 1]!a}."
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply to be read.") from error
    _Check(where).values(value, path="", ancestors=())
    return value


def parse_yaml_word(text: str) -> Any:
    """What YAML takes ``text`` for where it stands alone without quotes: a number, true, false, null or a text."""
    loader = _ConfigLoader("")
    try:
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        value = loader.construct_object(yaml.ScalarNode(tag, text))
    except (ValueError, yaml.YAMLError):  # looks like a number and is none, such as 0x_, or is the key << or =
        return text
    finally:
        loader.dispose()
    return text if isinstance(value, float) and not math.isfinite(value) else value


class _ConfigDumper(yaml.SafeDumper):
    """Quotes every text that this loader or PyYAML's own would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_ConfigDumper.add_implicit_resolver(_TAG + "int", _INT, list("-+0123456789"))
_ConfigDumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # The emitter writes these line ends as they are, and the reader folds them into blanks, unless escaped.
    style = '"' if any(sign in text for sign in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_ConfigDumper.add_representer(str, _represent_text)


def dump_yaml(value: Any) -> str:
    """``value`` as YAML that reads back as the same, here and with other YAML readers; keys keep their order."""
    return yaml.dump(value, Dumper=_ConfigDumper, sort_keys=False, allow_unicode=True, width=110)


def _place(text: str, mark: Any) -> tuple[int, int]:
    """Line and column of ``mark``, counted from 1; what is lacking at the end is told at the last character."""
    lines = text.splitlines() or [""]
    if mark.line < len(lines):
        return mark.line + 1, mark.column + 1
    return len(lines), len(lines[-1]) + 1


def _quoting_hint(text: str, line_number: int) -> str:
    """What helps with the two things that configs have and YAML takes for its own syntax inside braces."""
    line = (text.splitlines() or [""])[line_number - 1]
    if line.lstrip(" ").startswith("\t"):
        return " YAML is indented with spaces, not tabs."
    found = next((sign for sign in ("???", "${") if sign in line), None)
    if found is None or not re.search(r"[{\[]", line.replace("${", "")):
        return ""
    return f" Put {'${...}' if found == '${' else found} in quotes here."


@dataclass
class _Check:
    """Refuses what YAML can spell but no server can be sent: JSON has neither sets, bytes, NaN nor circles."""

    where: str
    left: int = _MOST_VALUES

    def values(self, node: Any, path: str, ancestors: tuple[int, ...]) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConfigError(f"{self.where}: more than {_MOST_VALUES} values, counting those that anchors repeat.")
        if isinstance(node, dict | list):
            if id(node) in ancestors:
                at = path or "the top level"
                raise ConfigError(f"{self.where}: {at} contains itself, through an anchor and its alias.")
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                step = f"[{key}]" if isinstance(node, list) else f".{key}" if path else str(key)
                self.values(value, path + step, (*ancestors, id(node)))
        elif isinstance(node, float) and not math.isfinite(node):
            raise ConfigError(f"{self.where}: {path} is {node}; needed: a finite number, or null. (Servers get JSON.)")
        elif node is not None and not isinstance(node, str | bool | int | float):
            raise ConfigError(
                f"{self.where}: {path} is a {type(node).__name__}; a config holds dicts, lists, texts, numbers, "
                f"true, false and null."
            )
