"""Whether calls are the expected ones: names, arguments, and values compared as their types demand. Pure.

The rules are those by which the Berkeley Function Calling Leaderboard compares calls with its possible answers
(``bfcl_eval/eval_checker/ast_eval`` in the wheel ``bfcl-eval`` 2026.3.23); the README says where these here differ.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, Field

from images.resources_servers.function_calls.literals import java_value, javascript_value

Language = Literal["python", "java", "javascript"]

VALUE_TYPES: Final[dict[Language, dict[str, type]]] = {
    "python": {
        "string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list, "dict": dict,
        "any": str,
    },
    "java": {
        "String": str, "char": str, "byte": int, "short": int, "integer": int, "long": int, "float": float,
        "double": float, "boolean": bool, "Array": list, "ArrayList": list, "HashMap": dict, "any": str,
    },
    "javascript": {
        "String": str, "integer": int, "Bigint": int, "float": float, "Boolean": bool, "array": list, "dict": dict,
        "any": str,
    },
}  # fmt: skip
"""What values the types of each language's function descriptions have, once a literal is read."""

_READERS: Final = {"java": java_value, "javascript": javascript_value}

ABSENT: Final = ""
"""Among accepted values: the argument may be left out. (Given as a text or a list it may then be empty.)"""


class ExpectedArgument(BaseModel):
    """An argument: its type, that of a list's items, and every value that is right.

    A dict among ``accepted`` holds a list of accepted values for each of its keys.
    """

    type: str
    items: str | None = None
    accepted: list[Any]
    required: bool


class ExpectedCall(BaseModel):
    """A call that is expected, with all arguments that it may have."""

    name: str = Field(min_length=1)
    arguments: dict[str, ExpectedArgument]


class Call(NamedTuple):
    """A call that a model made."""

    name: str
    arguments: dict[str, Any]


def calls_problem(calls: Sequence[Call], expected: Sequence[ExpectedCall], language: Language) -> str | None:
    """Why ``calls`` are not the expected ones, in whatever order; None when they are."""
    if len(calls) != len(expected):
        return f"{len(calls)} calls were made; expected {len(expected)}"
    problems = [[call_problem(call, wanted, language) for call in calls] for wanted in expected]
    if len(expected) == 1:
        return problems[0][0]
    unmatched = _unmatched([[problem is None for problem in row] for row in problems])
    if unmatched is None:
        return None
    nearest = next((p for p in problems[unmatched] if p is not None and not p.startswith(_OTHER_NAME)), "")
    return f"no call is left for the expected {expected[unmatched].name}{': ' + nearest if nearest else ''}"


def _unmatched(fits: Sequence[Sequence[bool]]) -> int | None:
    """The first expected call that finds no call of its own when each call serves only one; None when all do.

    Augmenting paths: an expected call may take another's, when that one finds a further one.
    """
    taken_by: dict[int, int] = {}

    def place(wanted: int, tried: set[int]) -> bool:
        for call, fitting in enumerate(fits[wanted]):
            if fitting and call not in tried:
                tried.add(call)
                if call not in taken_by or place(taken_by[call], tried):
                    taken_by[call] = wanted
                    return True
        return False

    return next((wanted for wanted in range(len(fits)) if not place(wanted, set())), None)


_OTHER_NAME: Final = "the function called is "


def call_problem(call: Call, expected: ExpectedCall, language: Language) -> str | None:
    """Why a call is not the expected one; None when it is."""
    if call.name != expected.name:
        return f"{_OTHER_NAME}{call.name[:80]!r}; expected {expected.name!r}"
    for name, wanted in expected.arguments.items():
        if name not in call.arguments and (wanted.required or ABSENT not in wanted.accepted):
            return f"the argument {name!r} is missing"
    for name, value in call.arguments.items():
        if name not in expected.arguments:
            return f"the argument {name[:80]!r} is not expected"
        problem = value_problem(value, expected.arguments[name], language)
        if problem is not None:
            return f"the argument {name!r} {problem}"
    return None


def value_problem(value: Any, argument: ExpectedArgument, language: Language) -> str | None:
    """Why a value is not right for an argument; None when it is."""
    types = VALUE_TYPES[language]
    wanted = types[argument.type]
    reader = _READERS.get(language)
    if reader is not None:
        if not isinstance(value, str):
            return f"is a {type(value).__name__}; expected a text in the syntax of {language}"
        value = reader(value, argument.type, argument.items)
    elif argument.type == "tuple" and isinstance(value, tuple):
        value = list(value)
    elif argument.type == "float" and type(value) is int:
        value = float(value)
    item = types[argument.items] if wanted is list and argument.items is not None else None
    any_item = reader is not None and argument.items == "any"

    # Where the accepted values are of another type than the described one, they are names of variables, or an object
    # instead of a text: such a value is right only as it stands there.
    given_type = next((type(option) for option in argument.accepted if option != ABSENT), None)
    if type(value) is wanted:
        if item is not None and not any_item and not any(_items_fit(value, o, item) for o in argument.accepted):
            return f"has an item of another type than {argument.items}"
        as_it_stands = given_type not in (None, wanted)
    elif given_type is not None and type(value) is given_type:
        as_it_stands = True
    else:
        return f"is a {type(value).__name__}; expected {argument.type}"

    if _is_accepted(value, argument.accepted, None if as_it_stands else wanted, item):
        return None
    return f"is {reprlib.repr(value)}, which is not accepted"


def _is_accepted(value: Any, accepted: Sequence[Any], wanted: type | None, item: type | None) -> bool:
    if wanted is dict:
        return any(_dict_fits(value, option) for option in accepted)
    if wanted is list and item is dict:
        return any(_dicts_fit(value, option) for option in accepted)
    if wanted is list:
        return _normalized_items(value) in [_normalized_items(option or []) for option in accepted if _is_list(option)]
    if wanted is str:
        return normalized(value) in [normalized(option) for option in accepted if isinstance(option, str)]
    return value in accepted


def _items_fit(values: Any, option: Any, item: type) -> bool:
    """Whether each item is of the described type, or of that of the accepted items."""
    if not isinstance(option, list):
        return True
    given_type = next((type(each) for each in option if each != ABSENT), None)
    return all(type(value) is item or type(value) is given_type for value in values)


def _is_list(option: Any) -> bool:
    return isinstance(option, list) or option == ABSENT


def _dict_fits(value: Any, option: Any) -> bool:
    """Whether a dict has an accepted value for each of its keys, and all keys that it must have."""
    if not isinstance(option, Mapping) or not isinstance(value, Mapping):
        return False
    for key, inner in value.items():
        if key not in option or _normalized_if_text(inner) not in _normalized_items(option[key]):
            return False
    return all(key in value or ABSENT in accepted for key, accepted in option.items())


def _dicts_fit(values: Sequence[Any], option: Any) -> bool:
    return _is_list(option) and len(values) == len(option) and all(map(_dict_fits, values, option))


_IGNORED = re.compile(r"[ ,./\-_*^]")


def normalized(text: str) -> str:
    """A text as it is compared: without spaces and some punctuation, in lower case, with one kind of quotes."""
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _normalized_if_text(value: Any) -> Any:
    return normalized(value) if isinstance(value, str) else value


def _normalized_items(values: Any) -> list[Any]:
    return [_normalized_if_text(value) for value in (values if isinstance(values, (list, tuple)) else [values])]
