"""Metrics over the replies of ``/verify``: means and spreads of every number in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nemo_gym.servers.messages import JsonDict

TASK_INDEX = "_ng_task_index"


def aggregate(replies: Sequence[JsonDict]) -> JsonDict:
    """``{group_level_metrics, agent_metrics, key_metrics}``.

    Numbers are the reply's own top-level ones and those of ``response.usage``. Groups are the repeats of a task.
    """
    numbers = [numbers_of(reply) for reply in replies]
    groups: dict[Any, list[dict[str, float]]] = {}
    for reply, own in zip(replies, numbers, strict=True):
        index = reply.get(TASK_INDEX)
        groups.setdefault(index if isinstance(index, int | str) else None, []).append(own)
    group_metrics = [{TASK_INDEX: index, **statistics_of(members)} for index, members in groups.items()]
    agent_metrics: JsonDict = {"count": len(replies), "tasks": len(groups), **statistics_of(numbers)}
    key_metrics = {k: v for k, v in agent_metrics.items() if k.startswith("mean/")}
    return {"group_level_metrics": group_metrics, "agent_metrics": agent_metrics, "key_metrics": key_metrics}


def numbers_of(reply: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one reply by name: its own, and its usage's. Truth values count as 0 and 1."""
    response = reply.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    numbers: dict[str, float] = {}
    for name, value in [*reply.items(), *(usage.items() if isinstance(usage, Mapping) else ())]:
        if isinstance(value, int | float) and not name.startswith("_ng_"):
            with suppress(OverflowError):  # a whole number beyond what a float can be
                numbers[name] = float(value)
    return numbers


def statistics_of(members: Iterable[Mapping[str, float]]) -> JsonDict:
    """``mean/x``, ``max/x``, ``min/x``, ``median/x`` and ``std/x`` (of a sample) for every name x."""
    columns: dict[str, list[float]] = {}
    for member in members:
        for name, value in member.items():
            columns.setdefault(name, []).append(value)
    # Not the statistics module: its exact fractions are slow, and importing it costs a server 15 ms at start.
    found: JsonDict = {}
    for name, values in columns.items():
        ordered = sorted(values)
        count = len(ordered)
        mean = math.fsum(ordered) / count
        middle = count // 2
        found[f"mean/{name}"] = mean
        found[f"max/{name}"] = ordered[-1]
        found[f"min/{name}"] = ordered[0]
        found[f"median/{name}"] = ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        if count > 1:
            found[f"std/{name}"] = math.sqrt(math.fsum((v - mean) ** 2 for v in ordered) / (count - 1))
    return found
