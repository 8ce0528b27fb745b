"""Scores an answer with the scorer of its generator. Runs in worker processes, and never runs what a model wrote.

Some scorers of reasoning-gym read answers with ``eval``, and some with ``sympy.parse_expr``, which is an ``eval`` too.
The first are given ``ast.literal_eval`` in its place, which reads the lists that they expect and nothing that acts;
for the second, answers that hold more than an expression are wrong before they are read.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from images.resources_servers.reasoning_gym import stand_ins
from images.resources_servers.reasoning_gym.scoring import UnknownGeneratorError

stand_ins.install()

from reasoning_gym.factory import DATASETS  # noqa: E402  (after what stands in for its imports)

_READ_BY_EVAL = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
_READ_BY_SYMPY = frozenset(
    {"simple_integration", "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"}
)
_EXPRESSION = re.compile(r"[\w\s+\-*/^().,=]*")
# An attribute of something, or a name that Python itself has a meaning for.
_MORE_THAN_EXPRESSION = re.compile(r"\.\s*[^\W\d]|__")
# These compare grids as tuples, which JSON has no word for.
_WITH_TUPLES = frozenset({"arc_agi", "rearc"})
# Its scorer takes any answer for right, since it asks whether texts are true that say "True" or "False".
_SAID_AS_TEXT = frozenset({"game_of_life_halting"})

for _name in _READ_BY_EVAL:
    _module = import_module(DATASETS[_name][0].__module__)
    _module.eval = ast.literal_eval  # type: ignore[attr-defined]

GENERATORS = frozenset(DATASETS) - {"composite"}


def score_answer(generator: str, parameters: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """What an answer to ``entry`` (``question``, ``answer``, ``metadata``) is worth, from 0 to 1.

    Raises ``UnknownGeneratorError``; whatever a scorer raises on an answer is worth 0.
    """
    scorer = _scorer(generator, json.dumps(parameters, sort_keys=True))
    if generator in _READ_BY_SYMPY and not is_expression(answer):
        return 0.0
    if generator in _SAID_AS_TEXT:
        return float(answer.casefold() == str(entry["answer"]).casefold())
    checked = dict(entry)
    if generator in _WITH_TUPLES:
        checked["metadata"] = _with_tuples(entry["metadata"])
    try:
        return min(1.0, max(0.0, float(scorer.score_answer(answer, checked))))
    except MemoryError:
        raise
    except Exception:  # of whatever kind: scorers read answers in a hundred ways
        return 0.0


def is_expression(answer: str) -> bool:
    """Whether reading an answer as an expression can do nothing else."""
    return _EXPRESSION.fullmatch(answer) is not None and _MORE_THAN_EXPRESSION.search(answer) is None


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
