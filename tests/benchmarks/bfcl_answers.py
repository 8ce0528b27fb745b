"""Right and systematically wrong calls for the rows of bfcl."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.bfcl.prepare import ANSWERS, CATEGORIES, QUESTIONS, UNANSWERED, WHEEL, WHEEL_SHA256, row_of, tool_name
from images.resources_servers.function_calls.app import Row
from nemo_gym.environment.downloads import read_wheel_member
from nemo_gym.environment.prepared_rows import read_json_lines

JsonDict = dict[str, Any]
Calls = list[tuple[str, Any]]
"""Names as the tools have them, and arguments; a text stands for what is no JSON object."""

LANGUAGES = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}
TEXT_TYPES = {"string", "String", "char", "any"}


class Case(NamedTuple):
    """An answer to a row: what is done in it, its calls, and whether it is right (None: only compared)."""

    kind: str
    calls: Calls
    is_right: bool | None


class Task(NamedTuple):
    """A row of the source with its possible answers, and the row that we make of it."""

    category: str
    question: JsonDict
    answers: list[JsonDict] | None
    row: Row


def tasks() -> Iterator[Task]:
    def lines(member: str, category: str) -> list[JsonDict]:
        content = read_wheel_member(WHEEL, member.format(category=category), sha256=WHEEL_SHA256)
        return list(read_json_lines(content))

    for category in CATEGORIES:
        questions = lines(QUESTIONS, category)
        answers = [None] * len(questions) if category in UNANSWERED else lines(ANSWERS, category)
        for question, answer in zip(questions, answers, strict=True):
            truth = None if answer is None else answer["ground_truth"]
            yield Task(category, question, truth, Row(**row_of(category, question, truth), response={"output": []}))


def cases_of(task: Task) -> Iterator[Case]:
    if task.answers is None:
        yield from cases_without_answers(task)
        return
    gold = [right_call(task, call) for call in task.answers]
    yield Case("right", gold, True)
    if task.category == "simple_java":
        bare = [(name, {key: _without_quotes(value) for key, value in each.items()}) for name, each in gold]
        if bare != gold:
            yield Case("right, texts in Java arrays without quotes", bare, None)
    yield Case("right, optional arguments left out", [shortest_call(task, call) for call in task.answers], True)
    yield Case("right, arguments reordered", [(name, dict(reversed(each.items()))) for name, each in gold], True)
    yield Case("right, every accepted value in turn", gold, True)
    for number, call in enumerate(task.answers):
        for name, changed in other_right_values(task, call, gold[number][1]):
            yield Case("right, every accepted value in turn", _with(gold, number, name, changed), True)
    loose = [(name, {key: _loose(task, name, key, value) for key, value in each.items()}) for name, each in gold]
    if loose != gold:
        yield Case("right, texts in other case, spaces and punctuation", loose, None)
    whole = [(name, {key: _whole(value) for key, value in each.items()}) for name, each in gold]
    if json.dumps(whole) != json.dumps(gold):  # 2 and 2.0 are equal
        yield Case("right, whole numbers without a fraction", whole, None)
    if len(gold) > 1:
        yield Case("right, calls reordered", gold[::-1], True)
        yield Case("right, calls rotated", [*gold[1:], gold[0]], True)
    yield from wrong_calls(task, gold)


def cases_without_answers(task: Task) -> Iterator[Case]:
    wants_call = UNANSWERED[task.category] == "any_call"
    name = tool_name(task.question["function"][0]["name"]) if task.question["function"] else "some_function"
    yield Case("no call", [], not wants_call)
    yield Case("a call", [(name, {})], wants_call)
    yield Case("two calls", [(name, {"a": 1}), (name, {})], wants_call)
    yield Case("a call of another function", [("no_such_function", {})], wants_call)
    yield Case("arguments that are no JSON", [(name, '{"a": ')], False)
    yield Case("arguments that are a list", [(name, "[1]")], False)


def wrong_calls(task: Task, gold: Calls) -> Iterator[Case]:
    yield Case("no call", [], False)
    yield Case("one call too many", [*gold, gold[-1]], False)
    if len(gold) > 1:
        yield Case("one call too few", gold[:-1], False)
        yield Case("the first call twice, the second missing", [gold[0], gold[0], *gold[2:]], None)
    for number, (name, arguments) in enumerate(gold):
        yield Case("another function", _with(gold, number, f"{name}_2", arguments), False)
        for other in task.question["function"]:
            if tool_name(other["name"]) != name:
                yield Case(
                    "another function of the row", _with(gold, number, tool_name(other["name"]), arguments), False
                )
        yield Case("arguments that are no JSON", _with(gold, number, name, '{"a": 1'), False)
        yield Case("arguments that are a list", _with(gold, number, name, "[1]"), False)
        yield Case("an argument too many", _with(gold, number, name, {**arguments, "not_expected": 1}), False)
        for key, value in arguments.items():
            accepted = accepted_of(task, number, key)
            rest = {each: inner for each, inner in arguments.items() if each != key}
            must = key in required_of(task, number) or "" not in accepted
            yield Case("an argument missing", _with(gold, number, name, rest), False if must else None)
            for kind, other, is_wrong in other_values(value):
                taken = any(other == option and type(other) is type(option) for option in accepted)
                empty = other == [] and "" in accepted
                changed = _with(gold, number, name, {**arguments, key: other})
                yield Case(kind, changed, False if is_wrong and not taken and not empty else None)
            if task.category in LANGUAGES:
                for kind, other in other_literals(task, number, key):
                    yield Case(f"in a literal: {kind}", _with(gold, number, name, {**arguments, key: other}), None)


def other_literals(task: Task, number: int, key: str) -> Iterator[tuple[str, str]]:
    """Values near a right one, as literals."""
    assert task.answers is not None
    ((name, accepted),) = task.answers[number].items()
    value = next(each for each in accepted[key] if each != "")
    for kind, other, _ in other_values(_first_of_each_key(value)):
        yield kind, written(task, name, key, other)


def other_values(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Values near a right one: what is done, the value, and whether it can only be wrong."""
    yield "null for a value", None, value is not None
    yield "a value in a list", [value], False
    yield "a value in a dict", {"value": value}, True
    yield "an empty text", "", False
    yield "an empty list", [], False
    yield "an empty dict", {}, False
    if isinstance(value, bool):
        yield "the other truth value", not value, True
        yield "a truth value as a text", str(value), True
        yield "a truth value as a number", int(value), True
    elif isinstance(value, (int, float)):
        yield "another number", value + 1, True
        yield "a number as a text", str(value), True
        yield "a number with a fraction", value + 0.5, True
        yield "a whole number as a float", float(value), False
        yield "a truth value for a number", True, True
    elif isinstance(value, str):
        yield "a text changed", f"{value}x", True
        yield "a text for another", "something else altogether", True
        yield "a number for a text", 7, True
        yield "a quoted text", json.dumps(value), False
        yield "a text with a semicolon", f"{value};", False
        yield "a text over several lines", re.sub(r"([{(\[,]) ?", "\\1\n  ", value), False
        yield "a text with spaces around it", f" {value} ", False
        yield "a text without its last character", value[:-1], False
        yield "a text cut in half", value[: len(value) // 2], False
        yield "digits changed in a text", re.sub(r"\d", lambda found: str((int(found[0]) + 1) % 10), value), False
    elif isinstance(value, list):
        yield "an item too many", [*value, value[-1] if value else "x"], True
        yield "an item too few", value[:-1], bool(value)
        yield "a list reversed", value[::-1], False
        yield "an item of another type", [*value[:-1], {"not": "expected"}], bool(value)
        for position, item in enumerate(value[:3]):
            for kind, other, _ in other_values(item):
                yield f"in a list: {kind}", [*value[:position], other, *value[position + 1 :]], False
    elif isinstance(value, dict):
        yield "a key too many", {**value, "not_expected": 1}, True
        for key, item in value.items():
            yield "a key missing", {each: inner for each, inner in value.items() if each != key}, False
            for kind, other, _ in other_values(item):
                yield f"in a dict: {kind}", {**value, key: other}, False


def _with(calls: Calls, number: int, name: str, arguments: Any) -> Calls:
    return [*calls[:number], (name, arguments), *calls[number + 1 :]]


def description_of(task: Task, name: str) -> JsonDict:
    return next(each for each in task.question["function"] if each["name"] == name)


def accepted_of(task: Task, number: int, key: str) -> list[Any]:
    assert task.answers is not None
    ((_, accepted),) = task.answers[number].items()
    return list(accepted.get(key, ()))


def required_of(task: Task, number: int) -> list[str]:
    assert task.answers is not None
    ((name, _),) = task.answers[number].items()
    return list(description_of(task, name)["parameters"]["required"])


def right_call(task: Task, call: Mapping[str, Any]) -> tuple[str, JsonDict]:
    """A call with the first accepted value of each argument; left out where only that is accepted."""
    ((name, accepted),) = call.items()
    values = {key: next((value for value in each if value != ""), None) for key, each in accepted.items()}
    parameters = description_of(task, name)["parameters"]
    given = {key: values[key] for key in parameters["properties"] if any(each != "" for each in accepted.get(key, ()))}
    for key in parameters["required"]:
        if key not in given and key in accepted:
            given[key] = ""  # an empty text is what is accepted
    return tool_name(name), {key: written(task, name, key, value) for key, value in given.items()}


def shortest_call(task: Task, call: Mapping[str, Any]) -> tuple[str, JsonDict]:
    ((name, accepted),) = call.items()
    required = description_of(task, name)["parameters"]["required"]
    tool, given = right_call(task, call)
    return tool, {key: value for key, value in given.items() if key in required or "" not in accepted[key]}


def other_right_values(task: Task, call: Mapping[str, Any], gold: JsonDict) -> Iterator[tuple[str, JsonDict]]:
    ((name, accepted),) = call.items()
    for key, values in accepted.items():
        for value in [each for each in values if each != ""][1:]:
            if key in gold:
                yield tool_name(name), {**gold, key: written(task, name, key, value)}


def written(task: Task, name: str, key: str, value: Any) -> Any:
    """An accepted value as a model would give it; a literal where the language is not Python."""
    described = description_of(task, name)["parameters"]["properties"].get(key, {})
    type_name, item = described.get("type", ""), described.get("items", {}).get("type")
    if task.category == "simple_java":
        return java_text(value, type_name, item)
    if task.category == "simple_javascript":
        return javascript_text(value, type_name)
    return _first_of_each_key(value)


def _first_of_each_key(value: Any) -> Any:
    """A value of which each dict has the first accepted value for each of its keys."""
    if isinstance(value, dict):
        firsts = {key: each if isinstance(each, list) else [each] for key, each in value.items()}
        return {key: next(v for v in each if v != "") for key, each in firsts.items() if any(v != "" for v in each)}
    return (
        [_first_of_each_key(each) if isinstance(each, dict) else each for each in value]
        if isinstance(value, list)
        else value
    )


def java_text(value: Any, type_name: str, item: str | None) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        items = ", ".join(_java_scalar(each, item or "any") for each in value)
        return f"new Object[]{{{items}}}" if type_name == "Array" else f"new ArrayList<>(Arrays.asList({items}))"
    if isinstance(value, dict):
        pairs = _first_of_each_key(value).items()
        puts = " ".join(f'put("{key}", {_java_scalar(each, "any")});' for key, each in pairs)
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    return _java_scalar(value, type_name)


def _without_quotes(value: str) -> str:
    return value.replace('"', "") if value.startswith("new Object[]") else value


def _java_scalar(value: Any, type_name: str) -> str:
    return json.dumps(value) + {"long": "L", "float": "f"}.get(type_name, "")


def javascript_text(value: Any, type_name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {json.dumps(each)}" for k, each in _first_of_each_key(value).items()) + "}"
    return json.dumps(value) + ("n" if type_name == "Bigint" else "")


def _loose(task: Task, tool: str, key: str, value: Any) -> Any:
    """A text, or the texts of a list, in capitals and with other punctuation, where the described type is that."""
    described = next(each for each in task.question["function"] if tool_name(each["name"]) == tool)
    type_name = described["parameters"]["properties"].get(key, {}).get("type")
    if isinstance(value, str) and type_name in TEXT_TYPES:
        return value.upper().replace(" ", "_") + "."
    if isinstance(value, list) and type_name in ("array", "tuple"):
        return [each.upper() + "-" if isinstance(each, str) else each for each in value]
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def python_text(calls: Calls) -> str:
    """Calls as a list in Python."""
    return f"[{', '.join(f'{name}({_named(arguments)})' for name, arguments in calls)}]"


def _named(arguments: JsonDict) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def json_text(calls: Calls) -> str:
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
