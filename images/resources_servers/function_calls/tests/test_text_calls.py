from __future__ import annotations

import time

import pytest

from images.resources_servers.function_calls.matching import Call
from images.resources_servers.function_calls.text_calls import calls_in_text

ONE = [Call("math_add", {"a": 1, "b": [2.5, "x"], "c": {"k": None}})]
JSON = '{"name": "math.add", "arguments": {"a": 1, "b": [2.5, "x"], "c": {"k": null}}}'


@pytest.mark.parametrize(
    "text",
    [
        '[math.add(a=1, b=[2.5, "x"], c={"k": None})]',
        "math_add(a=1, b=[2.5, 'x'], c={'k': None})",
        "```python\nmath.add(a=1, b=[2.5, 'x'], c={'k': None})\n```",
        f"Here it is:\n```json\n{JSON}\n```\nDone.",
        '{"name": "math_add", "parameters": {"a": 1, "b": [2.5, "x"], "c": {"k": null}}}',
        '[{"math.add": {"a": 1, "b": [2.5, "x"], "c": {"k": null}}}]',
        '{"name": "math_add", "arguments": "{\\"a\\": 1, \\"b\\": [2.5, \\"x\\"], \\"c\\": {\\"k\\": null}}"}',
        f"I will add.\n<tool_call>\n{JSON}\n</tool_call>",
        f"<tool_call>{JSON}",
    ],
)
def test_a_call_is_read_in_the_forms_that_models_write(text: str) -> None:
    assert calls_in_text(text) == ONE


@pytest.mark.parametrize(
    "text",
    [
        "[f(a=1), g()]",
        "f(a=1), g()",
        '[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]',
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
        "```\nf(a=1)\n```\nand\n```\ng()\n```",
    ],
)
def test_several_calls_come_in_their_order(text: str) -> None:
    assert calls_in_text(text) == [Call("f", {"a": 1}), Call("g", {})]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f(a=-1)", {"a": -1}),
        ("f(a=True, b=name)", {"a": True, "b": "name"}),
        ("f(a=(1, 2))", {"a": (1, 2)}),
        (r"f(a='\d')", {"a": "\\d"}),
        (r"f(a='\ud800')", {"a": "\ud800"}),
    ],
)
def test_values_are_literals_and_names_of_variables(text: str, arguments: dict[str, object]) -> None:
    assert calls_in_text(text) == [Call("f", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot do that with these functions.",
        "f",
        "[]",
        "{}",
        "42",
        '"f(a=1)"',
        "f(1)",
        "f(**a)",
        "f(a=g(1))",
        "f(a=1 + x)",
        "f(a=1)(b=2)",
        "f(a=[x for x in y])",
        "f(a={[]: 1})",
        "f(a=1); g()",
        "The call is f(a=1).",
        "[f(a=1), 2]",
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{"}',
        '{"name": "", "arguments": {}}',
        '{"a": 1, "b": 2}',
        '<tool_call>{"name": "f"}</tool_call><tool_call>{"name":</tool_call>',
        "__import__('os').system('touch /tmp/never')",
        "f(a=__import__('os').getcwd())",
    ],
)
def test_what_is_no_call_is_none(text: str) -> None:
    assert calls_in_text(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "f(a=" + "[" * 9_000 + "]" * 9_000 + ")",
        "f(a=" + "-" * 19_000 + "1)",
        "f(a=" + "not " * 4_900 + "1)",
        "f(a=" + "1+" * 9_900 + "1)",
        "a" + ".a" * 9_900 + "(b=1)",
        "f" + "()" * 9_900,
        "f(a=" + "9" * 19_000 + ")",
        '{"a":' * 3_900,
        "<tool_call>" * 1_800,
        "```\n" * 4_900,
        "f(a=1)" * 170_000,
        "\x00f(a=1)",
    ],
    ids=range(12),
)
def test_hostile_texts_are_read_at_once_and_hold_no_call(text: str) -> None:
    began = time.monotonic()
    assert calls_in_text(text) == []
    assert time.monotonic() - began < 30
