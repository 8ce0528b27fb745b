"""Whether a program passes its tests: those run here, and the function that they call runs in a process of its own.

This side knows the tests and is believed; the other one computes what its function returns. Values cross as data, so
that a test compares what it expects with a number or a list, and never with an object that a model designed.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from images.resources_servers.code_execution.confinement import hide_from_others
from images.resources_servers.code_execution.extraction import find_program
from images.resources_servers.code_execution.plain_data import PlainDataError
from images.resources_servers.code_execution.sandbox import Limits, Program, ProgramEndedError, ProgramRaisedError

PASSED: Final = "passed"
WRONG_ANSWER: Final = "wrong_answer"
NO_CODE: Final = "no_code"
_REASONS_OF_EXCEPTIONS: Final = {
    "MemoryError": "out_of_memory", "SyntaxError": "syntax_error", "IndentationError": "syntax_error",
    "TabError": "syntax_error",
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What a program is tested for. ``test`` defines ``check(candidate)``; see the README."""

    prompt: str
    entry_point: str
    test: str


@dataclass(frozen=True)
class Verdict:
    """``reason`` is ``passed``, or why not; ``code`` the program that was found in the answer."""

    reason: str
    code: str | None = None


class RowFaultError(Exception):
    """A row whose ``field`` cannot be used: no fault of any program."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message


def judge(text: str, problem: Problem, limits: Limits) -> Verdict:
    """The verdict on a model's answer. Call it in a process that can be ended: a test is a program, too.

    ``RowFaultError`` where the row is to blame, ``SandboxError`` where no program could be run.
    """
    hide_from_others()
    tests = _Tests(problem)
    code = find_program(text, problem.prompt, problem.entry_point)
    if code is None:
        return Verdict(NO_CODE)
    with Program(limits) as program:
        try:
            program.load(code, problem.entry_point)
            return Verdict(tests.run(program), code)
        except ProgramEndedError as ended:
            return Verdict(ended.reason, code)
        except ProgramRaisedError as raised:
            return Verdict(reason_of(raised.kinds), code)


def confinement(limits: Limits) -> tuple[str, ...]:
    """What of ``seccomp`` and ``landlock`` is in force around a program here."""
    with Program(limits) as program:
        return program.confinement


def reason_of(kinds: Sequence[str]) -> str:
    """The reason for an exception whose type and bases have these names: the first that is a built-in one's.

    Other names are the program's own choice, and none that metrics should have.
    """
    first = next((kind for kind in kinds if _built_in(kind) is not None), "Exception")
    return _REASONS_OF_EXCEPTIONS.get(first, first)


def _built_in(kind: str) -> type[BaseException] | None:
    found = getattr(builtins, kind, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


class _Tests:
    """The tests of a problem, ready to call: faults of a row are found before a program runs."""

    def __init__(self, problem: Problem) -> None:
        if not problem.entry_point.isidentifier():
            raise RowFaultError("entry_point", f"needed: the name of a function; found {problem.entry_point!r:.60}")
        self._entry_point = problem.entry_point
        # Helpers of the prompt are the row's own here, whatever a program makes of them.
        self._names: dict[str, Any] = {"__name__": "tests"}
        with _quiet():
            for field, source in (("prompt", problem.prompt), ("test", problem.test)):
                _run_of_row(field, source, self._names)
        if not callable(self._names.get("check")):
            raise RowFaultError("test", "it does not define check(candidate)")

    def run(self, program: Program) -> str:
        """The reason of the verdict on a program that is loaded."""
        candidate = _Candidate(program)
        self._names[self._entry_point] = candidate
        random.seed(0)  # the tests of a row are the same each time
        with _quiet():
            return self._reason(self._names["check"], candidate)

    @staticmethod
    def _reason(check: Any, candidate: _Candidate) -> str:
        try:
            check(candidate)
        except ProgramEndedError as ended:
            return ended.reason
        except RowFaultError:
            raise
        except Exception as error:
            return candidate.reason_of(error)
        if candidate.ended is not None:  # a test may catch whatever a call raises
            return candidate.ended.reason
        if not candidate.calls:
            raise RowFaultError("test", "its check(candidate) calls no candidate")
        return PASSED


class _Candidate:
    """What tests call: the program's function, by value."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.calls = 0
        self.ended: ProgramEndedError | None = None
        self._raised: list[tuple[Exception, tuple[str, ...]]] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.calls += 1
        try:
            return self._program.call(arguments, keywords)
        except PlainDataError as error:
            raise RowFaultError("test", f"it passes what cannot be passed: {error}") from None
        except ProgramEndedError as ended:
            self.ended = ended
            raise
        except ProgramRaisedError as raised:
            self._raise(raised)

    def _raise(self, raised: ProgramRaisedError) -> NoReturn:
        """As the exception that it was, where tests can tell it: a built-in one of one text."""
        kind = next(filter(None, map(_built_in, raised.kinds)), None)
        error: Exception = raised
        if kind is not None and issubclass(kind, Exception):
            with contextlib.suppress(Exception):  # some take more than a text
                error = kind(raised.text)
        self._raised.append((error, raised.kinds))
        raise error from None

    def reason_of(self, error: Exception) -> str:
        """The reason for what ended the tests: the program's own exception, or that they cannot go on with a value."""
        return next((reason_of(kinds) for own, kinds in self._raised if own is error), WRONG_ANSWER)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What tests print and warn of is for nobody."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _run_of_row(field: str, source: str, names: dict[str, Any]) -> None:
    try:
        code = compile(source, f"<{field}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowFaultError(field, f"it is no Python: {error}") from None
    try:
        exec(code, names)
    except Exception as error:
        raise RowFaultError(field, f"it cannot be run: {type(error).__name__}: {error}") from None
