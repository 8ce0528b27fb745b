"""Verdicts on programs that mean well; those that do not are in test_server.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from images.resources_servers.code_execution.judging import Problem, RowFaultError, Verdict, judge, reason_of
from images.resources_servers.code_execution.plain_data import Unknown
from images.resources_servers.code_execution.sandbox import (
    Limits,
    Program,
    ProgramEndedError,
    ProgramRaisedError,
    SandboxError,
)

LIMITS = Limits(cpu_s=2, deadline_s=20)
PROMPT = '''import math


def square(x):
    return x * x


def norm(*values, scale=1):
    """The length of a vector."""
'''
TEST = """
import math

def check(candidate):
    assert candidate(3, 4) == 5
    assert math.isclose(candidate(1, 1), math.sqrt(square(1) + 1))
    assert candidate(3, 4, scale=2) == 10
    try:
        candidate("a")
    except TypeError:
        pass
    else:
        assert False
"""
PROBLEM = Problem(PROMPT, "norm", TEST)
RIGHT = "def norm(*values, scale=1):\n    return scale * math.sqrt(sum(square(x) for x in values))\n"


def verdict(code: str, problem: Problem = PROBLEM, limits: Limits = LIMITS) -> str:
    return judge(f"```python\n{code}\n```", problem, limits).reason


def test_a_right_program_passes() -> None:
    assert judge(f"```python\n{RIGHT}```", PROBLEM, LIMITS) == Verdict("passed", PROMPT.split("def norm")[0] + RIGHT)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (RIGHT.replace("math.sqrt", ""), "wrong_answer"),
        ("def norm(*values, scale=1):\n    pass", "wrong_answer"),
        (RIGHT.replace(", scale=1", "").replace("scale *", ""), "TypeError"),
        (RIGHT.replace("square(x)", "cube(x)"), "NameError"),
        ("def norm(*values, scale=1):\n    return 1 / 0", "ZeroDivisionError"),
        ("import json\ndef norm(*values, scale=1):\n    json.loads('')", "ValueError"),
        ("import numpy\n" + RIGHT, "ModuleNotFoundError"),
        ("import images\n" + RIGHT, "ModuleNotFoundError"),
        ("import aiohttp\n" + RIGHT, "ModuleNotFoundError"),
        ("def norm(*values, scale=1):\nreturn 5", "syntax_error"),
        ("def norm(*values, scale=1):\n\treturn 5\n        return 6", "syntax_error"),
        ("norm = 5", "no_function"),
        ("def norm(*values, scale=1):\n    return input()", "EOFError"),
        (RIGHT + "\nif __name__ == '__main__':\n    raise SystemExit", "passed"),
        ("class Norm:\n    def __call__(self, *v, scale=1): return scale * math.hypot(*v)\nnorm = Norm()", "passed"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n" + RIGHT, "passed"),
        ("print('noise' * 100_000)\n" + RIGHT, "passed"),
        ("import decimal, fractions, re, heapq, itertools, hashlib, random, asyncio\n" + RIGHT, "passed"),
    ],
)
def test_the_verdict_says_why(code: str, reason: str) -> None:
    assert verdict(code) == reason


def test_no_program_is_no_code() -> None:
    assert judge("I cannot say.", PROBLEM, LIMITS) == Verdict("no_code")


def test_helpers_in_tests_are_the_rows_own() -> None:
    """A program may bring its own, and use them; the tests go on with those of the prompt."""
    wrong = "def square(x):\n    return 0\n" + RIGHT
    test = "def check(candidate):\n    assert candidate(1, 1) == 0\n    assert square(3) == 9 and callable(norm)\n"
    assert verdict(wrong, Problem(PROMPT, "norm", test)) == "passed"


def test_tests_may_call_the_function_by_its_name() -> None:
    test = "def check(candidate):\n    assert norm(3, 4) == candidate(3, 4) == 5\n"
    assert verdict(RIGHT, Problem(PROMPT, "norm", test)) == "passed"


def test_random_tests_are_the_same_each_time() -> None:
    test = "import random\ndef check(candidate):\n    assert candidate(random.random()) == random.Random(0).random()"
    for _ in range(2):
        assert verdict("def f(x): return x", Problem("", "f", test)) == "passed"


def test_arguments_are_passed_by_value() -> None:
    test = "def check(candidate):\n    x = [2, 1]\n    assert candidate(x) == [1, 2]\n    assert x == [2, 1]\n"
    assert verdict("def f(x):\n    x.sort()\n    return x", Problem("", "f", test)) == "passed"


def test_what_a_test_catches_cannot_hide_that_the_program_has_ended() -> None:
    test = "def check(candidate):\n    try:\n        candidate()\n    except BaseException:\n        pass\n"
    assert verdict("import os\ndef f(): os._exit(0)", Problem("", "f", test)) == "crashed"


@pytest.mark.parametrize(
    ("problem", "field", "message"),
    [
        (Problem("", "f", "def check(candidate"), "test", "it is no Python: "),
        (Problem("", "f", "x = 1"), "test", "it does not define check(candidate)"),
        (Problem("", "f", "def check(candidate): pass"), "test", "its check(candidate) calls no candidate"),
        (Problem("", "f", "raise OSError('no')"), "test", "it cannot be run: OSError: no"),
        (
            Problem("", "f", "def check(candidate): candidate(len)"),
            "test",
            "it passes what cannot be passed: a value of",
        ),
        (Problem("def f(", "f", "def check(candidate): candidate()"), "prompt", "it is no Python: "),
        (Problem("import nothing", "f", "def check(candidate): candidate()"), "prompt", "it cannot be run: ModuleNot"),
        (Problem("", "f g", "def check(candidate): candidate()"), "entry_point", "needed: the name of a function"),
    ],
)
def test_a_row_that_cannot_be_used_is_no_programs_fault(problem: Problem, field: str, message: str) -> None:
    with pytest.raises(RowFaultError) as fault:
        verdict(f"def {problem.entry_point}(*a): pass", problem)
    assert fault.value.field == field
    assert fault.value.message.startswith(message)


def test_reasons_are_names_that_python_has() -> None:
    assert reason_of(("JSONDecodeError", "ValueError", "Exception", "object")) == "ValueError"
    assert reason_of(("passed", "print", "object")) == "Exception"
    assert reason_of(()) == "Exception"
    assert reason_of(("MemoryError",)) == "out_of_memory"
    assert reason_of(("IndentationError", "SyntaxError")) == "syntax_error"


def test_a_program_is_asked_call_by_call() -> None:
    with Program(LIMITS) as program:
        assert "seccomp" in program.confinement
        program.load("seen = []\ndef f(*a, **k):\n    seen.append(a)\n    return len(seen), a, k", "f")
        assert program.call((1, "a"), {"k": {2}}) == (1, (1, "a"), {"k": {2}})
        assert program.call((), {}) == (2, (), {})
        program.load("def g(x):\n    if x: raise KeyError(x)\n    return g", "g")
        with pytest.raises(ProgramRaisedError) as raised:
            program.call((1,), {})
        assert raised.value.kinds[:2] == ("KeyError", "LookupError")
        assert type(program.call((0,), {})) is Unknown
        pid = program._process.pid
        assert os.getpgid(pid) == os.getsid(pid) == pid
    assert program._process.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_has_ended_stays_ended() -> None:
    with Program(LIMITS) as program:
        for _ in range(2):
            with pytest.raises(ProgramEndedError, match="crashed"):
                program.load("import os; os._exit(0)", "f")


def test_a_program_that_was_killed_from_outside_has_no_verdict() -> None:
    with Program(LIMITS) as program:
        program.load("def f(): pass", "f")
        os.kill(program._process.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="killed from outside"):
            program.call((), {})


def test_the_order_of_sets_and_the_environment_are_the_same_each_time() -> None:
    source = (
        "import os, sys\ndef f(): return [list(set('abcdefgh')), dict(os.environ), sys.argv, sys.path, os.getcwd()]"
    )
    seen = []
    for _ in range(2):
        with Program(LIMITS) as program:
            program.load(source, "f")
            seen.append(program.call((), {}))
    assert seen[0] == seen[1]
    assert seen[0][1:3] == [{"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}, ["-c"]]
    assert not [path for path in seen[0][3] if "site-packages" in path or str(Path.cwd()) in path]
    assert seen[0][4] == "/"


def test_a_program_goes_first_when_memory_is_short() -> None:
    with Program(LIMITS) as program:
        assert Path(f"/proc/{program._process.pid}/oom_score_adj").read_text(encoding="ascii") == "1000\n"


def test_none_of_our_descriptors_are_passed_on() -> None:
    with Path(os.devnull).open() as other:
        os.set_inheritable(other.fileno(), True)
        with Program(LIMITS) as program:
            program.load(
                "import os\ndef f():\n    found = []\n    for d in range(64):\n        try: os.fstat(d)\n"
                "        except OSError: continue\n        found.append(d)\n    return len(found)",
                "f",
            )
            assert program.call((), {}) == 5  # three of /dev/null, and a pipe each way
