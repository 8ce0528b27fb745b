"""What a prepare script defines, found out without running it."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nemo_gym.environment.prepare_child import STAGED_PARAMETER
from nemo_gym.errors import ConfigError


@dataclass(frozen=True)
class PrepareScript:
    """``parameters`` of ``prepare``, or None when any are taken, or it is not defined in the script itself."""

    has_prepare: bool
    has_currency_check: bool
    parameters: frozenset[str] | None = None
    required: frozenset[str] = frozenset()

    @property
    def takes_output_path(self) -> bool:
        """Whether ``prepare`` is told where to write; else it knows by itself."""
        return self.parameters is not None and STAGED_PARAMETER in self.parameters


def inspect_script(path: Path) -> PrepareScript:
    """The functions a prepare script defines at its top level. A ``ConfigError`` when it is no Python."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        raise ConfigError(f"Cannot read the prepare script {path}: {error.strerror}.") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"The prepare script {path}{line} is not valid Python: {error}.") from None
    names = {name for node in tree.body for name in _names_bound(node)}
    check = "is_prepared_data_current" in names
    definition = next(
        (node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef) and node.name == "prepare"), None
    )
    if definition is None:
        return PrepareScript("prepare" in names or "*" in names, check)
    arguments = definition.args
    if definition.decorator_list or arguments.posonlyargs:
        return PrepareScript(True, check)
    parameters = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
    without_default = arguments.args[: len(arguments.args) - len(arguments.defaults)]
    keyword_only = [
        a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    required = frozenset(argument.arg for argument in (*without_default, *keyword_only)) - {STAGED_PARAMETER}
    if arguments.kwarg is not None and STAGED_PARAMETER not in parameters:
        return PrepareScript(True, check, None, required)
    return PrepareScript(True, check, frozenset(parameters), required)


def find_faults(path: Path, args: Mapping[str, Any]) -> list[str]:
    """What keeps ``prepare(**args)`` of the script at ``path`` from being called, in sentences."""
    if not path.is_file():
        return [f"its prepare script {path} does not exist."]
    try:
        script = inspect_script(path)
    except ConfigError as error:
        return [str(error)]
    if not script.has_prepare:
        return [f"its prepare script {path} defines no function `prepare`."]
    faults = []
    if script.parameters is not None:
        takes = ", ".join(sorted(script.parameters - {STAGED_PARAMETER})) or "none"
        for name in (name for name in args if name not in script.parameters):
            near = get_close_matches(name, script.parameters, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            faults.append(f"prepare_script_args has {name!r}, which {path} does not take; it takes {takes}.{hint}")
    missing = sorted(script.required - set(args))
    if missing:
        faults.append(f"{path} needs prepare_script_args for {', '.join(missing)}.")
    return faults + [fault for name, value in args.items() for fault in _value_faults(name, value)]


def _value_faults(name: str, value: Any) -> list[str]:
    try:
        json.dumps(value, default=prepare_json_default, allow_nan=False)
    except (TypeError, ValueError) as error:
        return [f"prepare_script_args.{name}: {error}"]
    return []


def prepare_json_default(value: Any) -> str:
    """A path as its text; whatever else JSON does not have is refused rather than turned into text."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise TypeError(
        f"a prepare script cannot be given a {type(value).__name__}. Needed: None, bool, int, float, str, a path, a "
        "list or a dict"
    )


def _names_bound(node: ast.stmt) -> list[str]:
    """The names a top-level statement gives a value to, also one inside ``if`` or ``try``."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    names = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.append(inner.id)
        elif inner is not node and isinstance(inner, ast.FunctionDef | ast.ImportFrom):
            names += _names_bound(inner)
    return names
