from __future__ import annotations

import time
from typing import Any

import pytest

from images.resources_servers.code_execution.extraction import LONGEST_TEXT, find_program, preamble_of

PROMPT = '''from typing import List


def double(x: int) -> int:
    return 2 * x


def quadruple(values: List[int]) -> List[int]:
    """Four times each.
    >>> quadruple([1])
    [4]
    """
'''
PREAMBLE = PROMPT[: PROMPT.index("def quadruple")]
WHOLE = "def quadruple(values):\n    return [double(double(x)) for x in values]\n"
BODY = "    return [4 * x for x in values]"


def called(program: str | None, values: Any = (1, 2)) -> Any:
    """What the program's function returns; the programs of these tests are our own."""
    assert program is not None
    names: dict[str, Any] = {}
    exec(program, names)
    return names["quadruple"](list(values))


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{WHOLE}```",
        f"Sure!\n\n```python\n{WHOLE}```\n\nThis doubles twice.",
        f"```\n{WHOLE}\n```",
        f"```py\r\n{WHOLE.replace(chr(10), chr(13) + chr(10))}```",
        f"~~~python\n{WHOLE}~~~",
        f"````python\n{WHOLE}````",
        f"- as a list:\n\n  ```python\n  {WHOLE.replace(chr(10), chr(10) + '  ')}\n  ```",
        f"```python title=\"answer.py\"\n{WHOLE}```",
        f"```python\n{WHOLE}",
        f"```python\n{PROMPT}{BODY}\n```",
        f"```python\ndef quadruple(values):\n    return []\n```\nThat is wrong. Better:\n```python\n{WHOLE}```",
        f"```python\n{WHOLE}```\nTry it:\n```python\nprint(quadruple([1]))\n```\n```\n[4]\n```",
        "```python\nquadruple = lambda values: [4 * x for x in values]\n```",
        "```python\nfrom typing import Callable\nquadruple: Callable = lambda values: [4 * x for x in values]\n```",
        f"```python\n{WHOLE}```\nOutput:\n```\nquadruple: [4]\n```",
        f"```python\n{WHOLE}```\nUsage:\n```python\nquadruple = quadruple([1])\n```",
        f"{WHOLE}\nOutput:\n```\nquadruple = [4]\n```",
        "```python\nasync_free = 1\n\n@staticmethod\ndef quadruple(values):\n    return [4 * x for x in values]\n```",
        f"```python\nfrom __future__ import annotations\n\n{WHOLE}```",
        f"```python\n{WHOLE}\n# Example:\nprint(quadruple([1, 2, 3, 4",
        f"```python\n{WHOLE}\n>>> quadruple([1])\n[4]\n```",
        f"```python\nThe function:\n{WHOLE}```",
        WHOLE,
        f"{WHOLE}\nFor example:\n\n```\nquadruple([1])\n```",
        f"{PROMPT}{BODY}\n",
        f"Here is the function:\n\n{WHOLE}\nIt doubles twice.",
        ("Here you are.\nimport math\n\nfactor = int(math.sqrt(16))\n\n@staticmethod\ndef quadruple(values):\n"
        "    return [factor * x for x in values]\n\nHope this helps!\n"),
        f"{WHOLE}\nprint(quadruple([1])\n",
        BODY,
        BODY.strip(),
        f"```python\n{BODY}\n```",
        "result = []\n    for x in values:\n        result.append(4 * x)\n    return result",
        "result = []\nfor x in values:\n    result.append(4 * x)\nreturn result",
        f"{BODY}\n\nThat is all.",
        f"{BODY}\n\ndef main():\n    quadruple(",
        f"from __future__ import annotations\n{WHOLE}",
        f"{BODY}\n```\nNow you know.",
    ],
    ids=range(37),
)  # fmt: skip
def test_the_function_is_found_however_it_is_written(text: str) -> None:
    assert called(find_program(text, PROMPT, "quadruple")) == [4, 8]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "I cannot do that.",
        "```python\n```",
        "def other(values):\n    return (",
        "Let x be 4!",
        "```\n[4]]\n```",
    ],
)
def test_no_function_is_none(text: str) -> None:
    assert find_program(text, PROMPT, "quadruple") is None


def test_what_is_wrong_stays_wrong() -> None:
    program = find_program("```python\ndef quadruple(values):\n    return (\n```", PROMPT, "quadruple")
    assert program == f"{PREAMBLE}def quadruple(values):\n    return (\n"
    assert find_program("def quadruple(values):\n    return (", PROMPT, "quadruple") == program


def test_a_program_begins_with_what_the_prompt_has_before_the_function() -> None:
    assert preamble_of(PROMPT, "quadruple") == PREAMBLE
    assert preamble_of(PROMPT, "double") == "from typing import List\n\n\n"
    assert preamble_of("import math", "double") == "import math\n"
    assert preamble_of("@cache\ndef f(x):\n", "f") == ""
    assert find_program(f"```\n{WHOLE}```", PROMPT, "quadruple") == PREAMBLE + WHOLE
    assert find_program("```\ndef f(): pass\n```", "", "f") == "def f(): pass\n"


def test_nothing_is_continued_where_no_function_is_begun() -> None:
    assert find_program("return 1", "", "f") is None
    assert find_program("return 1", "import math\n", "f") is None
    assert find_program("def g():\n    return 1", "", "f") is None
    assert find_program("It prints:\n```\nf: 1\n```", "", "f") is None


def test_a_name_that_another_begins_with_is_another() -> None:
    assert find_program("```\ndef quadruple_all(values): return 1\n```\n", "", "quadruple") is None


def test_a_lone_surrogate_harms_nothing() -> None:
    assert called(find_program(f"\ud800 ```\n```python\n# \udfff\n{WHOLE}```", PROMPT, "quadruple")) == [4, 8]


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000 + f"\n\n```python\n{WHOLE}```",
        "```\n" * 250_000 + f"x\n```python\n{WHOLE}```",
        "`" * 1_000_000 + f"\n```python\n{WHOLE}```",
        "def quadruple(values): return [\n" * 30_000 + WHOLE,
        "x = 1\nA word.\n" * 60_000 + WHOLE + "\nAnother word." * 1000,
        "@a\n" * 300_000 + WHOLE,
        "(" * 1_000_000,
        "    x = 1\n" * 100_000 + "!",
    ],
    ids=["words", "fences", "ticks", "openings", "lines", "decorators", "brackets", "body"],
)
def test_a_megabyte_takes_no_long_time(text: str) -> None:
    assert len(text) > LONGEST_TEXT
    began = time.process_time()
    find_program(text, PROMPT, "quadruple")
    assert time.process_time() - began < 30
