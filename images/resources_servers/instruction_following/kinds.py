"""What a kind of instruction is: a check of an answer, and the arguments it takes, checked before any answer is.

::

    @kind("count:numbers")
    def has_so_many_numbers(answer: str, N: Count) -> bool: ...

The first parameter is the answer; the others are named as rows name them, and their annotations are what a row's
arguments are held to. All names of kinds and arguments are those of the benchmarks' own data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

Check = TypeVar("Check", bound=Callable[..., bool])

Count = Annotated[int, Field(ge=0)]
Ordinal = Annotated[int, Field(ge=1)]
Percentage = Annotated[float, Field(ge=0, le=100)]
Phrase = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Text = Annotated[str, Field(min_length=1)]  # every character of it counts
Phrases = Annotated[list[Phrase], Field(min_length=1)]
Relation = Literal["at least", "less than"]


@dataclass(frozen=True)
class Kind:
    """One kind of instruction."""

    name: str
    check: Callable[..., bool]
    arguments: type[BaseModel]


KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Check], Check]:
    """Register a check as the one for this kind."""

    def register(check: Check) -> Check:
        hints = get_type_hints(check, include_extras=True)
        names = list(inspect.signature(check).parameters)[1:]
        fields: dict[str, Any] = {argument: (hints[argument], ...) for argument in names}
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        KINDS[name] = Kind(name, check, arguments)
        return check

    return register


def is_so_many(found: int, relation: Relation, wanted: int) -> bool:
    return found >= wanted if relation == "at least" else found < wanted
