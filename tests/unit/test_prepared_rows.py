from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from nemo_gym.environment.prepared_rows import multiple_choice_row, read_json_lines, write_rows

CHOICES = ["iron", "gold", "tin", "lead"]


def row(task_id: str = "metals-1", choices: list[str] = CHOICES, seed: str | None = "1") -> dict[str, object]:
    return multiple_choice_row(task_id=task_id, question="Which?", choices=choices, right=1, seed=seed)


def test_json_lines_are_read_and_blank_lines_left_out() -> None:
    # A line separator inside of a text ends no line.
    assert list(read_json_lines('{"a": "é\u2028"}\n\n {"b": [1]} \r\n'.encode())) == [{"a": "é\u2028"}, {"b": [1]}]
    assert list(read_json_lines(b"")) == []


@pytest.mark.parametrize(
    ("content", "message"), [(b'{"a": 1}\n{"a"', "line 2 is no JSON"), (b"[1]", "line 1 is a list, and not an object")]
)
def test_a_line_that_is_no_object_is_named(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_json_lines(content))


def test_rows_are_written_one_a_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", iter([{"a": "é\n"}, {"b": None}]))
    assert path.read_bytes() == '{"a": "é\\n"}\n{"b": null}\n'.encode()


def test_without_a_seed_choices_stand_as_they_came() -> None:
    assert row(seed=None) == {
        "task_id": "metals-1",
        "question": "Which?",
        "options": [{"letter": letter, "text": text} for letter, text in zip("ABCD", CHOICES, strict=True)],
        "options_text": "A. iron\nB. gold\nC. tin\nD. lead",
        "expected_answer": "B",
    }


def test_a_seed_gives_an_order_that_is_pinned_and_keeps_the_right_choice_right() -> None:
    assert (row()["options_text"], row()["expected_answer"]) == ("A. gold\nB. lead\nC. tin\nD. iron", "A")
    assert row(seed="3")["options_text"] == "A. tin\nB. lead\nC. gold\nD. iron"
    assert row("metals-2")["options_text"] != row()["options_text"]


def test_every_order_comes_up_about_as_often() -> None:
    rows = [row(f"metals-{number}") for number in range(2400)]
    assert all(json.dumps(each["options"]).count("gold") == 1 for each in rows)
    orders = Counter(str(each["options_text"]) for each in rows)
    assert len(orders) == 24
    assert all(60 <= count <= 145 for count in orders.values())


@pytest.mark.parametrize(
    "choice",
    [
        "none of the above", "All of these.", "Both A and B", "A and B only", "B, C", "both (a) and (b)", "Both",
        "none", "Neither of them", "All the above", "Either A or B", "Option C", "A, B and C",
    ],
)  # fmt: skip
def test_choices_that_speak_of_others_keep_the_order(choice: str) -> None:
    for number in range(10):
        kept = row(f"metals-{number}", [*CHOICES[:3], choice])
        assert [option["text"] for option in kept["options"]] == [*CHOICES[:3], choice]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "choice", ["vitamin A and iron", "Both grow", "all metals", "A plan", "type A or type B blood", "I and II"]
)
def test_choices_that_do_not_speak_of_others_are_shuffled(choice: str) -> None:
    orders = {str(row(f"metals-{number}", [*CHOICES[:3], choice])["options_text"]) for number in range(30)}
    assert len(orders) > 5
