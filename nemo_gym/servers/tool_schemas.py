"""A resources server's tools as a model is told of them: function tools of the Responses API, from the typed methods.

Rows carry them in ``responses_create_params.tools``. So that the methods stay their only source, a benchmark keeps them
in a file that this module writes, and tests that the file still says what the server does::

    python -m nemo_gym.servers.tool_schemas images/resources_servers/counter/app.py > benchmarks/counter/tools.json
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import parameter_types
from nemo_gym.servers.messages import JsonDict
from nemo_gym.servers.resources import ResourcesServer, tool_names
from nemo_gym.servers.sessions import Session


def function_tools(server_type: type[ResourcesServer]) -> list[JsonDict]:
    """One ``{type, name, description, parameters, strict}`` for each tool, by name.

    The docstring of a method is its description. The schemas hold what a strict tool may: every property is required
    (one that may be left out is nullable, or has to be given), and none beside those is allowed. ``ConfigError`` for a
    tool that has no docstring, or takes anything at all.
    """
    return [_function_tool(server_type, name) for name in tool_names(server_type)]


def tools_text(server_type: type[ResourcesServer]) -> str:
    """``function_tools`` as the text of a JSON file: the same bytes everywhere."""
    return json.dumps(function_tools(server_type), indent=2, ensure_ascii=False) + "\n"


# What OpenAI's strict mode has no place for. The lengths are still checked, by the server.
_NOT_STRICT = frozenset({"title", "default", "minLength", "maxLength", "uniqueItems"})


def _function_tool(server_type: type[ResourcesServer], name: str) -> JsonDict:
    method = getattr(server_type, name)
    where = f"the tool {server_type.__name__}.{name}"
    description = inspect.getdoc(method)
    if not description:
        raise ConfigError(f"{where} has no docstring; needed: what it does, for the model to read")
    types = parameter_types(method)
    types.pop("self", None)
    bodies = [kind for kind in types.values() if kind is not Session]
    schema: JsonDict = {"type": "object", "properties": {}}
    if bodies:
        if not (isinstance(bodies[0], type) and issubclass(bodies[0], BaseModel)):
            raise ConfigError(f"{where} takes anything; needed: a pydantic model that names its arguments")
        schema = TypeAdapter(bodies[0]).json_schema()
        schema.pop("description", None)  # the docstring of the class is for those who read the code
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": _strict(schema, where, ()),
        "strict": True,
    }


def _strict(schema: Any, where: str, path: Sequence[str]) -> Any:
    """The schema without what strict tools may not have, and with what they must."""
    if isinstance(schema, list):
        return [_strict(item, where, path) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    finished: JsonDict = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            finished[key] = {name: _strict(inner, where, (*path, name)) for name, inner in value.items()}
        elif key not in _NOT_STRICT:
            finished[key] = _strict(value, where, path)
    free_form = finished.get("additionalProperties", False) is not False
    if free_form or not ({"type", "$ref", "anyOf", "enum", "const"} & finished.keys() or not path):
        place = ".".join(path) or "its arguments"
        raise ConfigError(f"{where}: {place} may hold anything; needed: a type that names what it holds")
    if finished.get("type") == "object":
        finished["required"] = list(finished.setdefault("properties", {}))
        finished["additionalProperties"] = False
    return finished


def load_server_type(app: Path) -> type[ResourcesServer]:
    """The resources server that ``app``, an app.py, defines; ``ConfigError`` unless it is exactly one."""
    spec = importlib.util.spec_from_file_location("server_app", app)
    if spec is None or spec.loader is None or not app.is_file():
        raise ConfigError(f"{app} is no Python file; needed: a resources server's app.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ResourcesServer) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(server.__name__ for server in found) or "none"
        raise ConfigError(f"{app} defines {names}; needed: one subclass of ResourcesServer")
    return found[0]


def main(arguments: Sequence[str]) -> int:
    """Write the tools of the one app.py named to stdout."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m nemo_gym.servers.tool_schemas PATH/TO/app.py > tools.json\n")
        return 2
    try:
        text = tools_text(load_server_type(Path(arguments[0])))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
