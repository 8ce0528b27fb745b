"""Which answer a request gets."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from images.responses_api_models.replay_model.recordings import (
    CHAT_COMPLETIONS,
    RESPONSES,
    NoRecordingError,
    RecordingError,
    Recordings,
    parse_recordings,
    request_digest,
)

REQUEST = {"input": [{"role": "user", "content": "q"}], "temperature": 0}


def lines(*records: Any) -> bytes:
    return b"\n".join(orjson.dumps(record) for record in records)


def answer(text: str) -> dict[str, Any]:
    return {"output": [{"type": "message", "content": text}]}


def record(text: str, rollout_id: str | None = None, request: Any = REQUEST, **more: Any) -> dict[str, Any]:
    return {"request": request, "response": answer(text), "rollout_id": rollout_id, **more}


def recordings(*records: Any) -> Recordings:
    made = Recordings()
    made.add(parse_recordings(lines(*records)))
    return made


def said(held: Recordings, rollout_id: str | None = None, request: Any = REQUEST) -> str:
    return str(orjson.loads(held.find(RESPONSES, request, rollout_id))["output"][0]["content"])


class TestDigest:
    @pytest.mark.parametrize(
        "same",
        [
            {"temperature": 0, "input": [{"content": "q", "role": "user"}]},
            {**REQUEST, "temperature": 0.0},
            {**REQUEST, "model": "any", "stream": False, "user": "me", "metadata": {"a": "b"}},
            {**REQUEST, "max_output_tokens": None},
            {**REQUEST, "input": [{"role": "user", "content": "q", "id": "msg_1", "status": "completed"}]},
        ],
    )
    def test_what_changes_no_answer_changes_no_digest(self, same: dict[str, Any]) -> None:
        assert request_digest(RESPONSES, same) == request_digest(RESPONSES, REQUEST)

    @pytest.mark.parametrize(
        "other",
        [
            {**REQUEST, "temperature": 0.5},
            {**REQUEST, "seed": 1},
            {**REQUEST, "input": "q"},
            {**REQUEST, "tools": [{"type": "function", "name": "f"}]},
            {**REQUEST, "tools": [{"type": "function", "name": "g"}]},
            {**REQUEST, "input": [{"role": "user", "content": "q", "call_id": "a"}]},
        ],
    )
    def test_anything_else_does(self, other: dict[str, Any]) -> None:
        assert request_digest(RESPONSES, other) != request_digest(RESPONSES, REQUEST)
        assert request_digest(CHAT_COMPLETIONS, REQUEST) != request_digest(RESPONSES, REQUEST)

    def test_it_is_the_same_everywhere_and_from_release_to_release(self) -> None:
        assert request_digest(RESPONSES, REQUEST) == DIGEST


DIGEST = "d4a15927ab074cc7f4ab1b14090585ff698b38b684dbb52698352ab026770071"


class TestRepeats:
    def test_without_rollouts_answers_come_in_order_and_then_again(self) -> None:
        held = recordings(record("a"), record("b"))
        assert [said(held) for _ in range(5)] == ["a", "b", "a", "b", "a"]

    def test_a_repeat_gets_the_answer_of_that_repeat_whenever_it_asks(self) -> None:
        held = recordings(record("zero", "x-r0"), record("one", "x-r1"), record("two", "x-r2"))
        assert [said(held, f"y-r{repeat}") for repeat in (2, 0, 1, 2)] == ["two", "zero", "one", "two"]
        assert [said(held, f"y-r{repeat}") for repeat in (3, 4)] == ["zero", "one"]

    def test_a_task_gets_its_own_answer_although_another_asks_the_same(self) -> None:
        held = recordings(*(record(f"{t}.{r}", f"old-t{t}-r{r}") for t in (3, 5) for r in (0, 1)))
        assert [said(held, f"new-t{t}-r{r}") for t, r in ((5, 1), (3, 0), (5, 0), (3, 1))] == [
            "5.1",
            "3.0",
            "5.0",
            "3.1",
        ]
        assert said(held, "new-t9-r1") == "3.1"
        assert said(held, "new-t5-r1-a2") == "5.1"  # another attempt of the same

    def test_of_several_attempts_the_last_one_counts(self) -> None:
        held = recordings(record("broken off", "run-t0-r0"), record("came to its end", "run-t0-r0-a1"))
        assert said(held, "new-t0-r0") == "came to its end"

    def test_rollouts_without_repeats_take_turns_and_keep_what_they_got(self) -> None:
        held = recordings(record("a", "one"), record("b", "two"))
        assert [said(held, name) for name in ("x", "y", "x", "z", "two")] == ["a", "b", "a", "a", "b"]

    def test_one_rollout_that_asks_the_same_again_gets_its_answers_in_order(self) -> None:
        held = recordings(*(record(f"{r}{n}", f"x-r{r}") for n in "abc" for r in (0, 1)))
        got = [(said(held, "y-r0"), said(held, "y-r1")) for _ in range(4)]
        assert got == [("0a", "1a"), ("0b", "1b"), ("0c", "1c"), ("0a", "1a")]


class TestNotRecorded:
    def test_it_is_an_error_that_says_in_what_the_nearest_differs(self) -> None:
        held = recordings(record("a"), record("b", request={"input": "other", "top_p": 1, "seed": 1}))
        with pytest.raises(NoRecordingError) as caught:
            held.find(RESPONSES, {**REQUEST, "temperature": 1, "seed": 4}, None)
        assert caught.value.nearest == ["seed", "temperature"]
        assert caught.value.recorded == 2
        assert caught.value.digest == request_digest(RESPONSES, {**REQUEST, "temperature": 1, "seed": 4})

    def test_the_other_api_is_another_request(self) -> None:
        request = {"messages": [{"role": "user", "content": "q"}]}
        held = recordings(record("a", request=request))
        assert b'"a"' in held.find(CHAT_COMPLETIONS, request, None)
        with pytest.raises(NoRecordingError):
            held.find(RESPONSES, request, None)


class TestRecordsOfARun:
    def test_other_records_and_failures_are_passed_over(self) -> None:
        kept = record("a", "x-t0-r0", kind="model_call", status=200, path=RESPONSES, method="POST", server="m")
        others = [
            {"kind": "verification", "path": "/verify", "status": 200, "request": {}, "response": {"reward": 1}},
            {"kind": "model_call", "path": RESPONSES, "status": 502, "request": REQUEST, "response": {"error": {}}},
        ]
        held = recordings(kept, *others)
        assert len(held) == 1
        assert said(held, "y-t0-r0") == "a"

    def test_one_that_was_cut_is_refused(self) -> None:
        with pytest.raises(RecordingError, match=r"line 2: its response was cut; .*record_body_kb"):
            recordings(record("a"), {"request": REQUEST, "response": {"head": "{", "tail": "}"}})


PARAMS = {"input": "add", "tools": [{"type": "function", "name": "add"}]}
CALLS = [{"type": "function_call", "call_id": c, "name": "add", "arguments": "{}", "id": f"fc_{c}"} for c in "ab"]
RESULTS = [{"type": "function_call_output", "call_id": c, "output": "3"} for c in "ab"]
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3"}]}


class TestRolloutsFile:
    def row(self, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        response = {"id": "r", "status": "incomplete", "output": output, "usage": {"total_tokens": 9}}
        return {"responses_create_params": PARAMS, "response": response, "reward": 1.0, **more}

    def test_a_single_answer_is_what_the_request_got(self) -> None:
        held = recordings(self.row([SAID], _ng_task_index=4, _ng_rollout_index=1, _ng_rollout_id="r-t4-r1"))
        assert orjson.loads(held.find(RESPONSES, PARAMS, "new-t4-r1")) == self.row([SAID])["response"]

    def test_steps_with_tools_are_made_again(self) -> None:
        held = recordings(self.row([*CALLS, *RESULTS, CALLS[0], RESULTS[0], SAID]))
        first = orjson.loads(held.find(RESPONSES, PARAMS, None))
        assert (first["output"], first["status"], first["usage"]) == (CALLS, "completed", None)
        conversation = [{"role": "user", "content": "add"}, *CALLS, *RESULTS]
        second = orjson.loads(held.find(RESPONSES, {**PARAMS, "input": conversation}, None))
        assert second["output"] == [CALLS[0]]
        conversation += [CALLS[0], RESULTS[0]]
        last = orjson.loads(held.find(RESPONSES, {**PARAMS, "input": conversation}, None))
        assert (last["output"], last["status"], last["usage"]) == ([SAID], "incomplete", {"total_tokens": 9})

    def test_a_rollout_that_its_last_tool_ended_keeps_its_usage(self) -> None:
        held = recordings(self.row([*CALLS, *RESULTS]))
        assert len(held) == 1
        assert orjson.loads(held.find(RESPONSES, PARAMS, None))["usage"] == {"total_tokens": 9}

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            (b"{", "line 1 is no JSON"),
            (b"\n[1]", "line 2: needed: a JSON object"),
            (b"{}", "line 1: it has no request"),
            (b'{"request": {}}', "it has no response"),
            (b'{"responses_create_params": {}}', "no input"),
            (b'{"responses_create_params": {"input": "x"}, "reward": 1}', "it has no response"),
        ],
    )
    def test_what_is_no_recording_is_named_by_its_line(self, line: bytes, says: str) -> None:
        with pytest.raises(RecordingError, match=says):
            list(parse_recordings(line))
