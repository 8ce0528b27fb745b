"""Rows of bfcl from functions made up here, the plans of its flavors, and rollouts on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bfcl import prepare as script
from benchmarks.bfcl.prepare import CATEGORIES, PARTS, asked_in_text, json_schema, prepare, row_of
from images.resources_servers.function_calls.app import FunctionCalls
from nemo_gym.config.discovery import describe_flavor, list_benchmarks
from nemo_gym.config.sources import install_root
from nemo_gym.environment import PlannedBenchmark, plan_benchmark
from tests.support.tool_use import Calls, run_rows

WEATHER = {
    "name": "weather.get",
    "description": "Looks up the weather.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "at": {"type": "tuple", "items": {"type": "float"}, "description": "Latitude, longitude."},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["city"],
    },
}
ANSWER = {"weather.get": {"city": ["Rome", "Roma"], "at": [[41.9, 12.5], ""], "days": [1, ""]}}


def question(name: str, *functions: Any, asked: Any = "How is Rome?") -> dict[str, Any]:
    return {"id": name, "question": [[{"role": "user", "content": asked}]], "function": list(functions)}


def test_a_row_has_its_functions_as_tools_and_its_answer_apart() -> None:
    assert row_of("simple_python", question("simple_python_9", WEATHER), [ANSWER]) == {
        "task_id": "simple_python_9",
        "category": "simple_python",
        "language": "python",
        "expectation": "these_calls",
        "expected_calls": [
            {
                "name": "weather_get",
                "arguments": {
                    "city": {"type": "string", "accepted": ["Rome", "Roma"], "required": True},
                    "at": {"type": "tuple", "items": "float", "accepted": [[41.9, 12.5], ""], "required": False},
                    "days": {"type": "integer", "accepted": [1, ""], "required": False},
                },
            }
        ],
        "responses_create_params": {
            "input": [{"role": "user", "content": "How is Rome?"}],
            "tools": [
                {
                    "type": "function",
                    "name": "weather_get",
                    "description": "Looks up the weather.",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "city": {"type": "string", "description": "Where."},
                            "at": {"type": "array", "items": {"type": "number"}, "description": "Latitude, longitude."},
                            "days": {"type": "integer", "default": 1},
                        },
                        "required": ["city"],
                    },
                    "strict": False,
                }
            ],
        },
    }


def test_types_of_the_source_become_those_of_json_schema() -> None:
    described = {
        "type": "dict",
        "description": "All of it.",
        "properties": {
            "a": {"type": "any", "optional": True},
            "b": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}, "minItems": 2},
            "c": {
                "type": "array",
                "items": {"type": "dict", "properties": {"d": {"type": "float", "format": "float"}}},
            },
            "e": {"type": "string", "enum": ["x", "y"], "default": None},
            "f": {"type": "tuple"},
            "g": {"type": "dict"},
        },
        "required": ["a"],
    }
    assert json_schema(described) == {
        "type": "object",
        "description": "All of it.",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}, "minItems": 2},
            "c": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "number"}}}},
            "e": {"type": "string", "enum": ["x", "y"], "default": None},
            "f": {"type": "array", "items": {}},
            "g": {"type": "object"},
        },
        "required": ["a"],
    }


def test_a_type_that_the_source_never_had_stops_the_preparation() -> None:
    with pytest.raises(KeyError, match="datetime"):
        json_schema({"type": "datetime"})


@pytest.mark.parametrize(
    ("category", "language", "types", "notes"),
    [
        (
            "simple_java",
            "java",
            {"a": "long", "b": "String", "c": "any", "d": "Array"},
            {
                "a": "Given as a text: a Java 8 literal of the type long, or the name of a variable.",
                "b": "What.",
                "c": "What. Given as a text: a name or an expression of Java 8.",
                "d": "What. Given as a text: a Java 8 literal of the type Array of String, or the name of a variable.",
            },
        ),
        (
            "simple_javascript",
            "javascript",
            {"e": "dict"},
            {
                "e": "What. Given as a text: a JavaScript literal of the type dict, or the name of a variable. "
                'Its keys: {"k": "A key."}.'
            },
        ),
    ],
)
def test_functions_of_other_languages_take_texts(
    category: str, language: str, types: dict[str, str], notes: dict[str, str]
) -> None:
    properties: dict[str, Any] = {name: {"type": each, "description": "What."} for name, each in types.items()}
    if "a" in properties:
        del properties["a"]["description"]
        properties["d"]["items"] = {"type": "String"}
    else:
        properties["e"]["properties"] = {"k": {"type": "String", "description": "A key."}}
    function = {
        "name": "X.f",
        "description": "Does it.",
        "parameters": {"type": "dict", "properties": properties, "required": list(types)},
    }
    row = row_of(category, question("q", function), [{"X.f": {name: ["v"] for name in types}}])
    (tool,) = row["responses_create_params"]["tools"]
    assert tool["parameters"]["properties"] == {
        name: {"type": "string", "description": note} for name, note in notes.items()
    }
    assert tool["parameters"]["required"] == list(types)
    assert row["language"] == language
    (call,) = row["expected_calls"]
    assert {name: each["type"] for name, each in call["arguments"].items()} == types


@pytest.mark.parametrize(
    ("category", "expectation"),
    [("irrelevance", "no_call"), ("live_irrelevance", "no_call"), ("live_relevance", "any_call")],
)
def test_rows_without_answers_expect_no_call_or_any(category: str, expectation: str) -> None:
    row = row_of(category, question("q", WEATHER), None)
    assert (row["expectation"], row["expected_calls"]) == (expectation, [])
    assert "tools" not in row_of(category, question("q"), None)["responses_create_params"]


def test_what_cannot_be_given_is_left_out_and_what_must_be_given_and_cannot_makes_every_call_wrong() -> None:
    answer = {"weather.get": {"days": [2], "mood": ["good", ""], "wind": ["low"]}}
    (call,) = row_of("multiple", question("q", WEATHER), [answer])["expected_calls"]
    assert call["arguments"] == {
        "city": {"type": "string", "accepted": [], "required": True},
        "days": {"type": "integer", "accepted": [2], "required": False},
        "wind": {"type": "any", "accepted": [], "required": True},
    }


def test_a_row_in_text_has_its_functions_in_the_first_message() -> None:
    row = row_of("simple_python", question("q", WEATHER), [ANSWER])
    told = asked_in_text(row)
    first, asked = told["responses_create_params"]["input"]
    assert "tools" not in told["responses_create_params"]
    assert (first["role"], asked) == ("system", {"role": "user", "content": "How is Rome?"})
    instruction, _, functions = first["content"].rpartition("\n")
    assert '[first_function(count=1), second_function(city="Rome", tags=["a", "b"])]' in instruction
    assert [function["name"] for function in json.loads(functions)] == ["weather_get"]
    assert told["expected_calls"] == row["expected_calls"]

    system = {"role": "system", "content": "Be brief."}
    row["responses_create_params"]["input"].insert(0, system)
    first, asked = asked_in_text(row)["responses_create_params"]["input"]
    assert first["content"].endswith("\n\nBe brief.")
    assert asked["role"] == "user"


NO_ARGUMENTS = {"name": "f", "description": "Does it.", "parameters": {"properties": {}, "required": []}}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """The wheel's files with two questions in each category, as lists of lines that a test may change."""
    files: dict[str, list[dict[str, Any]]] = {}
    for category in CATEGORIES:
        is_python = category not in script.SIMPLE[1:]
        function, answer = (WEATHER, ANSWER) if is_python else (NO_ARGUMENTS, {"f": {}})
        ids = [f"{category}_{number}" for number in range(2)]
        files[script.QUESTIONS.format(category=category)] = [question(each, function, asked=each) for each in ids]
        if category not in script.UNANSWERED:
            answers = [{"id": each, "ground_truth": [answer]} for each in ids]
            files[script.ANSWERS.format(category=category)] = answers

    def member(wheel: str, name: str, **pins: Any) -> bytes:
        assert (wheel, pins) == (script.WHEEL, {"sha256": script.WHEEL_SHA256})
        return "\n".join(map(json.dumps, files[name])).encode()

    monkeypatch.setattr(script, "read_wheel_member", member)
    return files


def ids_in(path: Path) -> list[str]:
    return [json.loads(line)["task_id"] for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("source")
def test_parts_are_categories_simple_and_all(tmp_path: Path) -> None:
    everything = ids_in(prepare(tmp_path / "all.jsonl"))
    assert everything == [f"{category}_{number}" for category in CATEGORIES for number in range(2)]
    assert len(CATEGORIES) == 13
    simple = ids_in(prepare(tmp_path / "simple.jsonl", "simple"))
    assert simple == [f"simple_{each}_{number}" for each in ("python", "java", "javascript") for number in range(2)]
    assert ids_in(prepare(tmp_path / "one.jsonl", "live_parallel")) == ["live_parallel_0", "live_parallel_1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"part": "simpel"}, "needed: a part, one of all, simple, "), ({"form": "xml"}, "needed: a form, tools or text")],
)
def test_an_unknown_part_or_form_is_named(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "rows.jsonl", **arguments)
    assert not list(tmp_path.iterdir())


def test_answers_to_other_questions_stop_the_preparation(
    source: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    source[script.ANSWERS.format(category="multiple")].reverse()
    with pytest.raises(ValueError, match="the answer to multiple_0 is that to multiple_1"):
        prepare(tmp_path / "rows.jsonl", "multiple")
    del source[script.ANSWERS.format(category="multiple")][0]
    with pytest.raises(ValueError, match="shorter"):
        prepare(tmp_path / "rows.jsonl", "multiple")


@pytest.fixture
def plan_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, list[dict[str, Any]]]
) -> Callable[[str, str, str], PlannedBenchmark]:
    """Plans a flavor on the made source, with the rows of the part and form that it is to have."""
    folder = tmp_path / "benchmarks" / "bfcl"
    shutil.copytree(
        install_root() / "benchmarks" / "bfcl", folder, ignore=shutil.ignore_patterns("data", "__pycache__")
    )
    (folder / "data").mkdir()
    monkeypatch.chdir(tmp_path)

    def plan(name: str, part: str, form: str = "tools") -> PlannedBenchmark:
        prepare(folder / "data" / f"{part}_{form}.jsonl", part, form)
        return plan_benchmark(name, overrides={"use_cached_prepared_benchmarks": True})

    return plan


@pytest.mark.parametrize("part", [part for part in PARTS if part != "all"])
def test_each_part_is_a_flavor(plan_of: Callable[..., PlannedBenchmark], part: str) -> None:
    planned = plan_of(f"bfcl/{part}", part)
    assert {row["category"] for row in planned.rows} == set(PARTS[part])
    params = planned.rows[0]["responses_create_params"]
    assert (params["max_output_tokens"], params["temperature"]) == (1024, 0.0)
    assert planned.rows[0]["agent_ref"]["name"] == "bfcl_simple_agent"


def test_the_flavors_say_how_many_rows_they_have() -> None:
    root = install_root()
    (bfcl,) = (entry for entry in list_benchmarks([root]) if entry.name == "bfcl")
    flavors = {each: describe_flavor(bfcl, each, root / f"benchmarks/bfcl/{each}.yaml") for each in bfcl.flavors}
    assert set(flavors) == {*PARTS, "text"} - {"all"}
    rows = {name: flavor.num_rows or 0 for name, flavor in flavors.items()}
    assert bfcl.num_rows == rows["text"] == sum(rows[category] for category in CATEGORIES) == 3641
    assert rows["simple"] == sum(rows[category] for category in PARTS["simple"])
    for flavor in flavors.values():
        assert flavor.description.startswith(f"{flavor.num_rows:,} questions of BFCL ")


def test_the_flavor_text_asks_for_calls_in_text(plan_of: Callable[..., PlannedBenchmark]) -> None:
    planned = plan_of("bfcl/text", "all", "text")
    assert len(planned.rows) == 26
    assert not any("tools" in row["responses_create_params"] for row in planned.rows)


async def test_a_rollout_is_one_answer_whose_calls_are_judged(plan_of: Callable[..., PlannedBenchmark]) -> None:
    planned = plan_of("bfcl", "all")

    def calls(task: str, outputs: list[Any]) -> Calls:
        """Right where a call is expected, with the first row of each category; wrong with the second."""
        assert not outputs
        if "irrelevance" in task:
            return [] if task.endswith("0") else [("weather_get", {"city": "Rome"})]
        if task.endswith("1"):
            return [] if "relevance" in task else [("weather_get", {"city": "Pisa"})]
        if task.startswith("simple_java"):
            return [("f", {})]
        return [("weather_get", {"city": "roma", "at": [41.9, 12.5]})]

    replies = await run_rows(FunctionCalls, planned.rows, calls, carry_out_tool_calls=False)
    assert {reply["task_id"]: reply["reward"] for reply in replies} == {
        f"{category}_{number}": 1.0 - number for category in CATEGORIES for number in range(2)
    }
    kinds = {item["type"] for reply in replies for item in reply["response"]["output"]}
    assert kinds == {"function_call", "message"}
