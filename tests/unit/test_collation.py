"""Collation: prepared rows become rows that can run, with ids and digests that say what they are."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.eval.collation import CollatedRow, PlannedTasks, RowSource, collate
from nemo_gym.eval.prompts import parse_prompt_config

AGENT = {"type": "responses_api_agents", "name": "agent"}


def source(**more: Any) -> RowSource:
    return RowSource(name="demo", agent_name="agent", where="demo.jsonl", **more)


def lines(*rows: Any) -> list[bytes]:
    return [(row if isinstance(row, str) else json.dumps(row)).encode() + b"\n" for row in rows]


def collated(*rows: Any, first_position: int = 0, **more: Any) -> list[CollatedRow]:
    return list(collate(lines(*rows), source(**more), first_position))


def asks(question: str, /, **more: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": question}, **more}


def test_a_ready_row_gets_its_agent_and_its_indices() -> None:
    (row,) = collated(asks("?", extra=[1]), num_repeats=2)
    assert list(row.repeats(2)) == [
        {**asks("?", extra=[1]), "agent_ref": AGENT, "_ng_task_index": 0, "_ng_rollout_index": 0},
        {**asks("?", extra=[1]), "agent_ref": AGENT, "_ng_task_index": 0, "_ng_rollout_index": 1},
    ]
    assert [json.loads(line) for line in row.lines(2)] == list(row.repeats(2))


def test_digest_is_of_the_canonical_json_without_bookkeeping() -> None:
    (row,) = collated(asks("ä?", z=1.0, a=2))
    expected = json.dumps({**asks("ä?", z=1.0, a=2), "agent_ref": AGENT}, sort_keys=True, separators=(",", ":"))
    expected = json.dumps(json.loads(expected), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    tasks = PlannedTasks()
    tasks.add(row, "demo")
    assert [task.input_digest for task in tasks] == [hashlib.sha256(expected.encode()).hexdigest()]


def test_a_digest_stays_the_same_from_one_python_and_machine_to_another() -> None:
    (row,) = collated({"task_id": "t", "responses_create_params": {"input": "2+2?", "temperature": 1e-7}, "n": 2**70})
    assert row.payload == (
        b'{"agent_ref":{"name":"agent","type":"responses_api_agents"},"n":1180591620717411303424,'
        b'"responses_create_params":{"input":"2+2?","temperature":1e-07},"task_id":"t"}'
    )
    assert hashlib.sha256(row.payload).hexdigest() == "09e3dc5d0e9e26a15f5286ff4f85e23eb3464c0c202f2eb5db33aa578c2b0ced"


def test_positions_count_rows_over_all_data_sets_and_pass_over_blank_lines() -> None:
    rows = list(collate([b"\n", *lines(asks("a")), b"  \n", *lines(asks("b", task_id="x"))], source(), 5))
    assert [(row.position, row.task_id) for row in rows] == [(5, "5"), (6, "x")]


def test_bookkeeping_of_an_earlier_run_is_dropped() -> None:
    (row,) = collated(asks("?", _ng_task_index=9, _ng_rollout_id="old", _ng_other=1))
    assert row.row == {**asks("?"), "agent_ref": AGENT}


def test_a_prompt_is_applied_to_raw_rows_and_the_fields_stay() -> None:
    prompt = parse_prompt_config({"user": "Q: {question}"}, "prompt.yaml")
    (row,) = collated({"question": "why?"}, prompt=prompt)
    assert row.row == {
        "question": "why?",
        "responses_create_params": {"input": [{"role": "user", "content": "Q: why?"}]},
        "agent_ref": AGENT,
    }


def test_parameters_come_from_the_data_set_then_the_row_then_the_config() -> None:
    (row,) = collated(
        {"responses_create_params": {"input": "?", "temperature": 0.5, "top_p": 0.5}},
        default_params={"temperature": 0.1, "max_output_tokens": 10, "top_p": 0.1},
        forced_params={"top_p": 0.9},
    )
    assert row.row["responses_create_params"] == {
        "input": "?",
        "temperature": 0.5,
        "max_output_tokens": 10,
        "top_p": 0.9,
    }


def test_a_row_may_name_another_agent_of_the_config() -> None:
    other = {"type": "responses_api_agents", "name": "other"}
    first, second = collated(
        asks("a", agent_ref=other), asks("b", agent_ref={"name": "agent"}), agents=frozenset({"other"})
    )
    assert first.row["agent_ref"] == other
    assert second.row["agent_ref"] == AGENT


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("not json", "line 2: this is no JSON"),
        ("[1]", "line 2: a row must be a JSON object; found list"),
        ({"question": "?"}, "line 2: the row has nothing to ask"),
        ({"responses_create_params": {"input": []}}, "line 2: the row has nothing to ask"),
        ({"responses_create_params": "text"}, "responses_create_params must be an object"),
        (asks("?", agent_ref={"name": "nobody"}), "names the agent 'nobody', which the config does not have"),
        (asks("?", agent_ref={"type": "resources_servers", "name": "agent"}), "agent_ref must be"),
        (asks("?", task_id=[1]), "line 2: task_id must be a text or a whole number"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "line 2:"),
    ],
)
def test_a_row_that_cannot_run_is_refused_with_its_line(row: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        collated(asks("fine"), row)
    assert str(caught.value).startswith("demo.jsonl, line 2: ")


def test_a_prompt_for_rows_that_already_carry_input_is_refused() -> None:
    prompt = parse_prompt_config({"user": "{question}"}, "prompt.yaml")
    with pytest.raises(ConfigError, match=r"already carries responses_create_params.input.*prompt.yaml"):
        collated(asks("?", question="?"), prompt=prompt)


def test_identical_rows_are_one_task_and_differing_ones_are_refused() -> None:
    tasks = PlannedTasks()
    first, again, other = collated(asks("?", task_id="t"), asks("?", task_id="t"), asks("!", task_id="t"))
    tasks.add(first, "demo")
    tasks.add(again, "demo")
    assert tasks.ids() == ["t"]
    with pytest.raises(ConfigError, match=r"position 2 has the task id 't' like an earlier row, and differs"):
        tasks.add(other, "demo")


def test_a_number_and_its_text_are_the_same_id() -> None:
    tasks = PlannedTasks()
    first, second = collated(asks("?", task_id=1), asks("?", task_id="1"))
    tasks.add(first, "demo")
    with pytest.raises(ConfigError, match="differs"):
        tasks.add(second, "demo")
