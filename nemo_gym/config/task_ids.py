"""Which task a row belongs to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nemo_gym.errors import ConfigError

TASK_ID_KEYS: Final = ("task_id", "problem_id", "instance_id")


def task_id_of_row(row: Mapping[str, Any], position: int) -> str:
    """The row's task id: its ``task_id``, else ``problem_id``, else ``instance_id``, else ``position``.

    ``position`` is the row's place in its source, before repeats; a collated row carries it as
    ``_ng_task_index``. Whole numbers become text; a key that holds null counts as absent.
    """
    for key in TASK_ID_KEYS:
        value = row.get(key)
        if value is None:
            continue
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        found = "an empty text" if value == "" else f"{type(value).__name__} {value!r:.80}"
        raise ConfigError(
            f"{key} must be a text or a whole number; found {found}. Correct it, or leave the key out: the row is "
            "then known by its position in the source."
        )
    return str(position)
