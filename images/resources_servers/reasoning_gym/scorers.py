"""Scores an answer with the scorer of its generator. Runs in worker processes, and never runs what a model wrote.

Some scorers of reasoning-gym read answers with ``eval``, and some with ``sympy.parse_expr``, which is an ``eval`` too.
The first are given ``ast.literal_eval`` in its place, which reads the lists that they expect and nothing that acts;
for the second, answers that hold more than an expression are wrong before they are read. So sympy is not told to
solve the puzzle either, by ``integrate(...)`` or ``expand(...)``: only functions of mathematics may be named.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from images.resources_servers.reasoning_gym import stand_ins
from images.resources_servers.reasoning_gym.scoring import UnknownGeneratorError
from images.resources_servers.reasoning_gym.solutions import solves

stand_ins.install()

from reasoning_gym.factory import DATASETS  # noqa: E402  (after what stands in for its imports)

_READ_BY_EVAL = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
_FUNCTIONS = frozenset({
    "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "exp", "log", "ln", "sqrt", "Abs", "abs",
})  # fmt: skip
# Those whose answers sympy reads, and the functions that may be named in them.
_READ_BY_SYMPY: dict[str, frozenset[str]] = {
    "simple_integration": _FUNCTIONS,
    "intermediate_integration": _FUNCTIONS,
    "polynomial_multiplication": frozenset(),
    "puzzle24": frozenset(),
    "countdown": frozenset(),
}
_EXPRESSION = re.compile(r"[\w\s+\-*/^().,=]*")
# An attribute of something, or a name that Python itself has a meaning for.
_MORE_THAN_EXPRESSION = re.compile(r"\.\s*[^\W\d]|__")
# What is called: a name, or what other brackets give.
_CALLED = re.compile(r"([^\W\d]\w*|\))\s*\(")
# These compare grids as tuples, which JSON has no word for.
_WITH_TUPLES = frozenset({"arc_agi", "rearc"})

for _name in _READ_BY_EVAL:
    _module = import_module(DATASETS[_name][0].__module__)
    _module.eval = ast.literal_eval  # type: ignore[attr-defined]

GENERATORS = frozenset(DATASETS) - {"composite"}


def score_answer(generator: str, parameters: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """What an answer to ``entry`` (``question``, ``answer``, ``metadata``) is worth, from 0 to 1.

    Raises ``UnknownGeneratorError``; whatever a scorer raises on an answer is worth 0.
    """
    scorer = _scorer(generator, json.dumps(parameters, sort_keys=True))
    if generator in _READ_BY_SYMPY and not is_expression(answer, _READ_BY_SYMPY[generator]):
        return 0.0
    checked = dict(entry)
    if generator in _WITH_TUPLES:
        checked["metadata"] = _with_tuples(entry["metadata"])
    try:
        score = min(1.0, max(0.0, float(scorer.score_answer(answer, checked))))
        return score if score < 1.0 or solves(generator, answer, entry) else 0.0
    except MemoryError:
        raise
    except Exception:  # of whatever kind: scorers read answers in a hundred ways
        return 0.0


def is_expression(answer: str, functions: Collection[str]) -> bool:
    """Whether reading an answer as an expression can do nothing else than name ``functions`` of its values."""
    if _EXPRESSION.fullmatch(answer) is None or _MORE_THAN_EXPRESSION.search(answer) is not None:
        return False
    return all(called in functions for called in _CALLED.findall(answer))


@functools.lru_cache(maxsize=64)
def _scorer(generator: str, parameters: str) -> Any:
    if generator not in GENERATORS:
        raise UnknownGeneratorError(f"reasoning-gym has no generator {generator!r}")
    dataset_type, config_type = DATASETS[generator]
    try:
        config = config_type(**json.loads(parameters))
        getattr(config, "validate", lambda: None)()  # one of them has none
    except (TypeError, AssertionError, ValueError) as error:
        raise UnknownGeneratorError(f"{generator} does not take these parameters: {error}") from None
    return dataset_type(config=config)


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(_with_tuples(inner) for inner in value) if isinstance(value, list) else value
