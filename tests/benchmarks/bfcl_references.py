"""What our verifier and the leaderboard's own checker say to right and systematically wrong calls on every row of bfcl.

::

    python -m tests.benchmarks.bfcl_references

Needs nothing but the benchmark's wheel (from PyPI, the cache or ``NEMO_GYM_DATA_MIRROR``): its checker is imported from
the wheel as it is, without the libraries for the models that it can also call. Both get each answer as the JSON text of
tool calls. Every difference between them is printed, and counted under the reason that ``reason_for_difference`` finds
for it. A difference without a reason makes the exit code 1, and so does a wrong answer that ours takes.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter, defaultdict
from copy import deepcopy
from itertools import permutations
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.bfcl.prepare import UNANSWERED, WHEEL, WHEEL_SHA256
from images.resources_servers.function_calls.app import read_items, reason_for
from images.resources_servers.function_calls.matching import Call
from images.resources_servers.function_calls.text_calls import calls_in_text
from nemo_gym.environment.downloads import fetch_wheel
from tests.benchmarks.bfcl_answers import LANGUAGES, Calls, Case, Task, cases_of, json_text, python_text, tasks


class Official:
    """The checker in the wheel. Only whether dots in names become underscores depends on the model there."""

    def __init__(self) -> None:
        sys.path.insert(0, str(fetch_wheel(WHEEL, sha256=WHEEL_SHA256)))
        models = ModuleType("bfcl_eval.constants.model_config")
        vars(models)["MODEL_CONFIG_MAPPING"] = {"any": SimpleNamespace(underscore_to_dot=True)}
        sys.modules[models.__name__] = models
        self._languages = importlib.import_module("bfcl_eval.constants.enums").Language
        self._check = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker

    def verdict(self, task: Task, calls: Calls) -> bool | str:
        """Right or wrong; the name of an exception where the checker ends in one."""
        try:
            decoded = [{name: json.loads(_text(arguments))} for name, arguments in calls]
        except json.JSONDecodeError:
            decoded = None
        is_format = decoded is not None and all(isinstance(next(iter(call.values())), dict) for call in decoded)
        if task.category in UNANSWERED:
            # As _evaluate_single_relevance_entry in bfcl_eval/eval_checker/eval_runner.py has it.
            called = is_format and bool(decoded)
            return called if UNANSWERED[task.category] == "any_call" else not called
        if not is_format:
            return False
        language = self._languages[LANGUAGES.get(task.category, "PYTHON")]
        try:
            found = self._check(
                deepcopy(task.question["function"]), decoded, deepcopy(task.answers), language, task.category, "any"
            )
        except Exception as error:  # whatever it raises, of which the difference tells
            return type(error).__name__
        return bool(found["valid"])


def our_verdict(task: Task, calls: Calls) -> str | None:
    items = [{"type": "function_call", "name": name, "arguments": _text(arguments)} for name, arguments in calls]
    return reason_for(task.row, read_items(items))


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def reason_for_difference(
    official: Official, task: Task, case: Case, theirs: bool | str, ours: str | None
) -> str | None:
    """Why the two differ; None where nothing that the verifier's README names explains it."""
    values = [value for _, arguments in case.calls if isinstance(arguments, dict) for value in arguments.values()]
    texts = [value for value in values if isinstance(value, str)]
    expected = [each for call in task.row.expected_calls for each in call.arguments.values()]
    if task.category in UNANSWERED:
        return "a call whose arguments cannot be read is a call" if case.kind.startswith("arguments that are") else None
    if task.category in LANGUAGES and any(_stands_in_no_list(option) for each in expected for option in each.accepted):
        return "an accepted value that stands in no list counts as one that does"
    if ours is not None:
        if isinstance(theirs, str):
            return f"the checker ends in a {theirs}"
        no_literal = task.category in LANGUAGES and re.search("is a str; expected (HashMap|Array|array|dict)", ours)
        return "a text that is no literal as a whole is not searched for one" if no_literal else None
    if task.category in LANGUAGES:
        if any("\n" in text for text in texts):
            return "a literal may go over several lines"
        if any(each.items == "any" for each in expected):
            return "items of any type are read as what they look like"
        if any(text.strip().startswith("new Object[]") and '"' in text for text in texts):
            return "texts in a Java array are in quotes"
    if any(official.verdict(task, list(order)) is True for order in permutations(case.calls)):
        return "calls are paired with expected ones in the best way, whatever their order"
    return None


def _stands_in_no_list(option: Any) -> bool:
    return isinstance(option, dict) and not all(isinstance(values, list) for values in option.values())


def main() -> int:
    official = Official()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: Counter[str] = Counter()
    faults = 0
    impossible = []
    as_text: Counter[str] = Counter()
    for task in tasks():
        for case in cases_of(task):
            theirs, ours = official.verdict(task, case.calls), our_verdict(task, case.calls)
            counts = table["a change within a list or dict" if case.kind.startswith("in a ") else case.kind]
            counts["answers"] += 1
            counts["official"] += theirs is True
            counts["ours"] += ours is None
            if case.kind == "right" and theirs is not True:
                impossible.append((task.question["id"], ours))
            if (ours is None) is not (theirs is True) or isinstance(theirs, str):
                reason = reason_for_difference(official, task, case, theirs, ours)
                counts["differ"] += 1
                reasons[reason or "unexplained"] += 1
                faults += reason is None
                print(f"{task.question['id']}, {case.kind}: {case.calls!s:.300}: {theirs}; ours: {ours} ({reason})")
            if case.is_right is False and ours is None:
                faults += 1
                print(f"{task.question['id']}, {case.kind}: taken although wrong: {case.calls!s:.300}")
            if case.kind == "right" and task.row.language == "python":
                for text in (python_text(case.calls), json_text(case.calls)):
                    as_text["texts"] += 1
                    if calls_in_text(text) != [Call(*each) for each in case.calls]:
                        as_text["misread"] += 1
                        faults += 1
                        print(f"{task.question['id']}: misread: {text:.300}")
    print(f"right calls as text, in Python and JSON: {as_text['texts']:,}, misread: {as_text['misread']:,}")
    print("right calls that the checker does not take:", impossible)
    print("\n| Answers | Number | Taken by the checker | Taken by ours | Verdicts that differ |\n|---|---|---|---|---|")
    for kind, counts in [*table.items(), ("all", sum(table.values(), Counter()))]:
        print(
            f"| {kind} | " + " | ".join(f"{counts[key]:,}" for key in ("answers", "official", "ours", "differ")) + " |"
        )
    for reason, count in reasons.most_common():
        print(f"{count:,}: {reason}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
