"""A plan and its collated rows as one JSON text, one row a line, so that neither side holds it twice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nemo_gym.errors import ConfigError
from nemo_gym.eval.canonical_json import dumps_canonical, loads_exact
from nemo_gym.eval.collation import AGENT_REF
from nemo_gym.eval.collector import collector_paused
from nemo_gym.eval.eval_plan import EvalPlan

_HEAD: Final = '{"plan":\n'
# JSON has no line break inside a text, so this can stand in one place only.
_MIDDLE: Final = '\n,"rows":[\n'
_END: Final = "\n]}\n"


def planned_json(plan: EvalPlan, rows: Sequence[dict[str, Any]]) -> str:
    """The JSON text; the same plan and rows always give the same."""
    out = bytearray(_HEAD.encode())
    out += plan.to_json().rstrip("\n").encode("utf-8")
    out += _MIDDLE.encode()
    for number, row in enumerate(rows):
        if number:
            out += b",\n"
        try:
            out += dumps_canonical(row)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"rows[{number}] cannot be written as JSON: {error}.") from None
    out += _END.encode()
    return out.decode("utf-8")


def parse_planned(text: str) -> tuple[EvalPlan, list[dict[str, Any]]]:
    """The plan and the rows of such a text, however its JSON is laid out."""
    try:
        middle = text.find(_MIDDLE)
        if text.startswith(_HEAD) and middle >= 0 and text.endswith(_END):
            plan = loads_exact(text[len(_HEAD) : middle])
            with collector_paused():
                rows = _checked_rows(_rows_in_lines(text, middle + len(_MIDDLE)))
            return EvalPlan.from_dict(plan), rows
        data = loads_exact(text)
    except ValueError as error:
        raise ConfigError(
            f"This is no planned benchmark: {error}. Needed: the text that PlannedBenchmark.to_json gives."
        ) from None
    if not isinstance(data, dict) or set(data) != {"plan", "rows"} or not isinstance(data["rows"], list):
        raise ConfigError("A planned benchmark is a JSON object with the keys 'plan' and 'rows', a list.")
    return EvalPlan.from_dict(data["plan"]), _checked_rows(data["rows"])


def _rows_in_lines(text: str, start: int) -> Iterator[Any]:
    end = len(text) - len(_END)
    while start < end:
        stop = text.find("\n", start)
        yield loads_exact(text[start : stop - 1 if stop < end else end])
        start = stop + 1


def _checked_rows(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows as a list. Those of one agent share the object that names it, as they did when collated."""
    checked: list[dict[str, Any]] = []
    agent_ref: Any = None
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ConfigError(f"A planned benchmark's rows[{number}] must be an object; found {type(row).__name__}.")
        if AGENT_REF in row:
            if row[AGENT_REF] == agent_ref:
                row[AGENT_REF] = agent_ref
            agent_ref = row[AGENT_REF]
        checked.append(row)
    return checked
