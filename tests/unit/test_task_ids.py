"""Which task a row belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.config.task_ids import task_id_of_row


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"task_id": "a", "problem_id": "b", "instance_id": "c"}, "a"),
        ({"problem_id": "b", "instance_id": "c"}, "b"),
        ({"instance_id": "c"}, "c"),
        ({"question": "?"}, "7"),
        ({"task_id": None, "problem_id": 12}, "12"),
        ({"task_id": 0}, "0"),
        ({"task_id": 2**70}, str(2**70)),
    ],
)
def test_first_key_that_is_set_else_position(row: dict[str, Any], expected: str) -> None:
    assert task_id_of_row(row, 7) == expected


@pytest.mark.parametrize("value", ["", 1.5, True, [1], {"a": 1}])
def test_ids_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"task_id must be a text or a whole number"):
        task_id_of_row({"task_id": value}, 0)
