"""Whether an answer follows its instructions: strictly, as it stands, and loosely, with what wraps it taken off."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

# They register their kinds.
from images.resources_servers.instruction_following import ifbench_forms, ifbench_words, ifeval
from images.resources_servers.instruction_following.kinds import KINDS

FAMILIES = (ifeval, ifbench_words, ifbench_forms)

Instruction = tuple[str, Mapping[str, Any]]
"""A kind's name, and its arguments as ``checked_arguments`` gives them."""

Verdict = tuple[bool, bool]
"""Followed strictly, followed loosely."""


class InstructionError(ValueError):
    """An instruction that cannot be checked: no such kind, or not its arguments. ``path`` leads to what is wrong."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


def checked_arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an instruction as its check takes them.

    Those that are null count as not given: some data sets name the arguments of every kind in every row.
    """
    found = KINDS.get(name)
    if found is None:
        raise InstructionError(("instruction_id_list",), f"there is no kind {name!r}{_nearest(name, KINDS)}")
    try:
        arguments = found.arguments.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        takes = ", ".join(found.arguments.model_fields) or "no arguments"
        path = ("kwargs", *problem["loc"])
        raise InstructionError(path, f"{name} takes {takes}: {problem['msg']}") from None
    return {key: getattr(arguments, key) for key in found.arguments.model_fields}


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)
    return f"; nearest: {near[0]}" if near else ""


def judge(answer: str, instructions: Sequence[Instruction]) -> list[Verdict]:
    """One verdict for each instruction. An answer of nothing but white space follows none."""
    verdicts: list[Verdict] = []
    for name, arguments in instructions:
        check = KINDS[name].check
        strict = bool(answer.strip()) and check(answer, **arguments)
        loose = strict or any(check(variant, **arguments) for variant in loose_variants(answer))
        verdicts.append((strict, loose))
    return verdicts


def loose_variants(answer: str) -> list[str]:
    """The answer without its first line, its last one, or both ("Sure, here it is:"), each also without asterisks."""
    lines = answer.split("\n")
    wrapped = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    variants = [text.replace("*", "") for text in (answer, *wrapped)] + wrapped
    return [variant for variant in dict.fromkeys(variants) if variant.strip() and variant != answer]
