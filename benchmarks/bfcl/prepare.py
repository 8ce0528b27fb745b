"""Writes the rows of bfcl: questions with the tools that a model has for them, and the calls that are right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import read_json_lines, write_rows

WHEEL: Final = "bfcl_eval-2026.3.23-py3-none-any.whl"
WHEEL_SHA256: Final = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
QUESTIONS: Final = "bfcl_eval/data/BFCL_v4_{category}.json"
ANSWERS: Final = "bfcl_eval/data/possible_answer/BFCL_v4_{category}.json"

SIMPLE: Final = ("simple_python", "simple_java", "simple_javascript")
UNANSWERED: Final = {"irrelevance": "no_call", "live_irrelevance": "no_call", "live_relevance": "any_call"}
"""Categories without possible answers, and what is expected in them."""
CATEGORIES: Final = (
    *SIMPLE,
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "all": CATEGORIES,
    "simple": SIMPLE,
    **{category: (category,) for category in CATEGORIES},
}

INSTRUCTION: Final = """\
You can call the functions below. Answer with the calls that the request needs and with nothing else, as a list in \
Python syntax in which every argument is named:
[first_function(count=1), second_function(city="Rome", tags=["a", "b"])]
Where none of the functions helps, or the request lacks what a function needs, say so in words, without any call.

The functions, in JSON:
"""

JsonDict = dict[str, Any]

# What JSON schema calls the types of the source. "any" stands for objects that are written down as texts there.
_SCHEMA_TYPES: Final = {
    "string": "string",
    "any": "string",
    "integer": "integer",
    "float": "number",
    "boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "dict": "object",
}
# "optional" and "format" of the source are no JSON schema.
_SCHEMA_KEYS: Final = ("description", "enum", "default", "maximum", "minItems", "maxItems")
_OTHER_LANGUAGES: Final = {"simple_java": ("java", "Java 8"), "simple_javascript": ("javascript", "JavaScript")}


def prepare(output_path: Path, part: str = "all", form: str = "tools") -> Path:
    """Write the rows of ``part``, which is a category, ``simple`` or ``all``, in the order of the source.

    The functions are ``tools`` of the request, or, in the form ``text``, described in its first message.
    """
    if part not in PARTS:
        raise ValueError(f"needed: a part, one of {', '.join(PARTS)}; found {part!r}")
    if form not in ("tools", "text"):
        raise ValueError(f"needed: a form, tools or text; found {form!r}")
    rows = (row for category in PARTS[part] for row in rows_of(category))
    return write_rows(output_path, rows if form == "tools" else map(asked_in_text, rows))


def rows_of(category: str) -> Iterator[JsonDict]:
    """The rows of one category. ``ValueError`` where questions and answers do not belong together."""
    questions = _lines(QUESTIONS.format(category=category))
    answers = [None] * len(questions) if category in UNANSWERED else _lines(ANSWERS.format(category=category))
    for question, answer in zip(questions, answers, strict=True):
        if answer is not None and answer["id"] != question["id"]:
            raise ValueError(f"the answer to {question['id']} is that to {answer['id']}")
        yield row_of(category, question, None if answer is None else answer["ground_truth"])


def row_of(category: str, question: Mapping[str, Any], answers: Sequence[Mapping[str, Any]] | None) -> JsonDict:
    """The row of one question. ``answers`` holds ``{function: {argument: accepted values}}`` for each call."""
    functions = {function["name"]: function for function in question["function"]}
    tools = [tool_of(category, function) for function in question["function"]]
    (turn,) = question["question"]
    expected = [expected_call(functions[name], accepted) for call in answers or () for name, accepted in call.items()]
    return {
        "task_id": question["id"],
        "category": category,
        "language": _OTHER_LANGUAGES.get(category, ("python", ""))[0],
        "expectation": UNANSWERED.get(category, "these_calls"),
        "expected_calls": expected,
        "responses_create_params": {"input": turn, **({"tools": tools} if tools else {})},
    }


def asked_in_text(row: JsonDict) -> JsonDict:
    """A row whose functions stand in its first message, for models and endpoints without tools."""
    params = row["responses_create_params"]
    functions = [{key: tool[key] for key in ("name", "description", "parameters")} for tool in params.get("tools", ())]
    instruction = INSTRUCTION + json.dumps(functions, ensure_ascii=False)
    first, *others = params["input"]
    if first["role"] == "system":
        messages = [{**first, "content": f"{instruction}\n\n{first['content']}"}, *others]
    else:
        messages = [{"role": "system", "content": instruction}, first, *others]
    return {**row, "responses_create_params": {"input": messages}}


def tool_name(name: str) -> str:
    """A function's name as tools may have it: endpoints take no dots in it."""
    return name.replace(".", "_")


def tool_of(category: str, function: Mapping[str, Any]) -> JsonDict:
    """A function's description as a tool of the Responses API. Not strict, so that arguments may be left out."""
    parameters, description = function["parameters"], function["description"]
    if category in _OTHER_LANGUAGES:
        language = _OTHER_LANGUAGES[category][1]
        description = f"{description} (A function of {language}.)"
        properties = {name: _literal_schema(each, language) for name, each in parameters["properties"].items()}
        schema: JsonDict = {"type": "object", "properties": properties, "required": parameters["required"]}
    else:
        schema = json_schema(parameters)
    return {
        "type": "function",
        "name": tool_name(function["name"]),
        "description": description,
        "parameters": schema,
        "strict": False,
    }


def json_schema(described: Mapping[str, Any]) -> JsonDict:
    """The JSON schema of what the source describes with type names of its own."""
    schema: JsonDict = {"type": _SCHEMA_TYPES[described["type"]]}
    schema |= {key: described[key] for key in _SCHEMA_KEYS if key in described}
    if schema["type"] == "array":
        schema["items"] = json_schema(described["items"]) if "items" in described else {}
    if schema["type"] == "object" and "properties" in described:
        schema["properties"] = {name: json_schema(each) for name, each in described["properties"].items()}
        if isinstance(described.get("required"), list):
            schema["required"] = described["required"]
    return schema


def _literal_schema(described: Mapping[str, Any], language: str) -> JsonDict:
    """The schema of an argument that is given as a text in the syntax of its language."""
    notes = [described.get("description", "")]
    type_name = described["type"]
    if type_name == "any":
        notes.append(f"Given as a text: a name or an expression of {language}.")
    elif type_name not in ("String", "char"):
        inside = f" of {described['items']['type']}" if "items" in described else ""
        notes.append(
            f"Given as a text: a {language} literal of the type {type_name}{inside}, or the name of a variable."
        )
    if described.get("properties"):
        inner = {name: each.get("description", "") for name, each in described["properties"].items()}
        notes.append(f"Its keys: {json.dumps(inner, ensure_ascii=False)}.")
    schema: JsonDict = {"type": "string", "description": " ".join(filter(None, notes))}
    return schema | ({"default": described["default"]} if "default" in described else {})


def expected_call(function: Mapping[str, Any], accepted: Mapping[str, Sequence[Any]]) -> JsonDict:
    """A right call: each argument with its type, the accepted values, and whether it has to be given.

    Accepted values of an argument that the function does not have are left out: none can be given. Where it may not be
    left out either, or where a required argument has no accepted values, no call is right.
    """
    properties, required = function["parameters"]["properties"], function["parameters"]["required"]
    arguments = {}
    for name, described in properties.items():
        if name not in accepted and name not in required:
            continue
        arguments[name] = {
            "type": described["type"],
            **({"items": described["items"]["type"]} if "items" in described else {}),
            "accepted": list(accepted.get(name, ())),
            "required": name in required,
        }
    for name, values in accepted.items():
        if name not in properties and "" not in values:
            arguments[name] = {"type": "any", "accepted": [], "required": True}
    return {"name": tool_name(function["name"]), "arguments": arguments}


def _lines(member: str) -> list[JsonDict]:
    return list(read_json_lines(read_wheel_member(WHEEL, member, sha256=WHEEL_SHA256)))
