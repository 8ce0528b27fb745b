"""Function calls: whether a model called the right functions with the right arguments, or rightly called none.

The calls of a model's first answer count, and are not carried out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Self

import orjson
from pydantic import model_validator

from images.resources_servers.function_calls.matching import (
    VALUE_TYPES,
    Call,
    ExpectedCall,
    Language,
    calls_problem,
)
from images.resources_servers.function_calls.text_calls import calls_in_text
from nemo_gym.servers.json_values import loads
from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings

NON_LIVE: Final = (("simple_python", "simple_java", "simple_javascript"), "multiple", "parallel", "parallel_multiple")
LIVE: Final = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
IRRELEVANCE: Final = ("irrelevance", "live_irrelevance")


class Row(VerifyRequest):
    """What a row must carry."""

    category: str
    """The group of rows whose accuracy is told apart."""
    language: Language
    """The language of the functions: arguments of others than Python's are texts in its syntax."""
    expectation: Literal["these_calls", "any_call", "no_call"]
    expected_calls: list[ExpectedCall]

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        if (self.expectation == "these_calls") != bool(self.expected_calls):
            raise ValueError(
                "expected_calls must name the calls when expectation is these_calls, and be empty otherwise"
            )
        known = VALUE_TYPES[self.language]
        for call in self.expected_calls:
            for name, argument in call.arguments.items():
                for type_name in (argument.type, argument.items):
                    if type_name is not None and type_name not in known:
                        raise ValueError(
                            f"expected_calls: the argument {name!r} of {call.name} has the type {type_name!r}; "
                            f"{self.language} has {', '.join(known)}"
                        )
        return self


class FunctionCallsSettings(ResourcesSettings):
    """``text_calls``: whether a text that consists of calls counts as them, where an answer has none of its own."""

    text_calls: bool = False


class Made(NamedTuple):
    """The calls of an answer; ``problem`` says what is wrong with the first that cannot be read."""

    calls: list[Call]
    form: Literal["items", "text"] | None
    problem: str | None = None


class FunctionCalls(ResourcesServer):
    """Reward 1.0 for the expected calls, else 0.0."""

    settings: FunctionCallsSettings

    async def verify(self, row: Row) -> JsonDict:
        made = self._calls_of(row)
        reason = reason_for(row, made)
        return {
            "reward": float(reason is None),
            "reason": reason,
            "calls_made": len(made.calls),
            "call_form": made.form,
        }

    def _calls_of(self, row: Row) -> Made:
        made = read_items(first_answer_calls(row.response["output"]))
        if made.form is not None or not self.settings.text_calls:
            return made
        calls = calls_in_text(row.text())
        return Made(calls, "text" if calls else None)

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        if replies:
            accuracies = accuracies_of(replies)
            metrics["key_metrics"] |= accuracies
            called = sum(reply.get("call_form") is not None for reply in replies)
            metrics["agent_metrics"] |= {**accuracies, "called_rate": called / len(replies)}
        return metrics


def first_answer_calls(output: Sequence[JsonDict]) -> list[JsonDict]:
    """The function calls of a model's first answer: those before the first output of a tool."""
    calls = []
    for item in output:
        if item.get("type") == "function_call_output":
            break
        if item.get("type") == "function_call":
            calls.append(item)
    return calls


def read_items(items: Sequence[JsonDict]) -> Made:
    """The calls of ``function_call`` items. One that cannot be read is left out."""
    calls: list[Call] = []
    problem = None
    for item in items:
        name, arguments = item.get("name"), item.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = loads(arguments.encode())
            except orjson.JSONDecodeError as error:
                problem = problem or f"the arguments of {name!r:.80} are no JSON: {error.msg}"
                continue
        if isinstance(name, str) and isinstance(arguments, dict):
            calls.append(Call(name, arguments))
        else:
            problem = problem or f"the arguments of {name!r:.80} are no JSON object"
    return Made(calls, "items" if items else None, problem)


def reason_for(row: Row, made: Made) -> str | None:
    """Why an answer is wrong; None when it is right."""
    if row.expectation == "no_call":
        # One that cannot be read is a call too: the function would have been called.
        return None if made.form is None else "a call was made; expected none"
    if row.expectation == "any_call":
        return None if made.calls and not made.problem else (made.problem or "no call was made; expected one")
    return made.problem or calls_problem(made.calls, row.expected_calls, row.language)


def accuracies_of(replies: Sequence[JsonDict]) -> dict[str, float]:
    """``accuracy/<category>`` for each category, and what the Berkeley Function Calling Leaderboard makes of them.

    ``non_live`` is the mean of simple (the mean of its three languages), multiple, parallel and parallel_multiple,
    ``live`` the same over all rows of the four live ones, ``irrelevance_mean`` the mean of both irrelevance categories.
    ``single_turn`` is the mean of these three, which have equal weights in the leaderboard's overall score (version 4:
    10 % each; the rest is multi-turn and agentic). Each is there when every category that it is made of is. Source:
    ``generate_leaderboard_csv`` in ``bfcl_eval/eval_checker/eval_runner_helper.py`` of the wheel ``bfcl-eval``
    2026.3.23.
    """
    rewards: dict[str, list[float]] = {}
    for reply in replies:
        category, reward = reply.get("category"), reply.get("reward")
        if isinstance(category, str) and isinstance(reward, (int, float)):
            rewards.setdefault(category, []).append(float(reward))
    means = {category: _mean(values) for category, values in sorted(rewards.items())}
    found = {f"accuracy/{category}": mean for category, mean in means.items()}
    simple = NON_LIVE[0]
    if all(each in means for each in (*simple, *NON_LIVE[1:])):
        found["accuracy/simple"] = _mean([means[each] for each in simple])
        found["accuracy/non_live"] = _mean([found["accuracy/simple"], *(means[str(each)] for each in NON_LIVE[1:])])
    if all(each in means for each in LIVE):
        found["accuracy/live"] = _mean([reward for each in LIVE for reward in rewards[each]])
    if all(each in means for each in IRRELEVANCE):
        found["accuracy/irrelevance_mean"] = _mean([means[each] for each in IRRELEVANCE])
    parts = [found.get(f"accuracy/{part}") for part in ("non_live", "live", "irrelevance_mean")]
    if None not in parts:
        found["accuracy/single_turn"] = _mean([part for part in parts if part is not None])
    return found


def _mean(values: Sequence[Any]) -> float:
    return math.fsum(values) / len(values)


if __name__ == "__main__":
    raise SystemExit(run_server(FunctionCalls))
