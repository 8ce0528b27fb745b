"""Settings of the caller's that no config file has, and whose name is nearly that of one that is there. Pure.

A server may take settings that its config file does not list, so that an unknown name is no error by itself.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nemo_gym.config.instances import SETTINGS
from nemo_gym.config.merging import Layer, merge_layers

_NEAR: Final = 0.85


def list_near_misses(layers: Sequence[Layer]) -> list[str]:
    """A sentence for each setting in a caller's layer that is probably misspelt."""
    files = merge_layers([layer.content for layer in layers if not layer.by_caller])
    text = json.dumps(files, default=str, ensure_ascii=False)
    found = []
    for layer in layers:
        if layer.by_caller:
            for path, meant in _misspelt(layer.content, files, ()):
                if f"${{{path[0]}" not in text:  # a key that the files refer to is one of their own
                    found.append(f"{layer.origin}: no config file has {'.'.join(path)}. Is {meant} meant?")
    return found


def _misspelt(
    given: Mapping[str, Any], known: Mapping[str, Any], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    names = {str(key) for key, value in known.items() if not isinstance(value, Mapping)}
    if not above:
        names |= SETTINGS
    for key, value in given.items():
        beneath = known.get(key)
        if isinstance(value, Mapping):
            if isinstance(beneath, Mapping):
                yield from _misspelt(value, beneath, (*above, str(key)))
        elif key not in known and key not in names:
            near = [
                name for name in difflib.get_close_matches(str(key), names, 1, _NEAR) if _letters(name) != _letters(key)
            ]
            if near:
                yield (*above, str(key)), ".".join((*above, *near))


def _letters(name: str) -> str:
    """``step_2`` is another one than ``step_1``, and none of them misspelt."""
    return re.sub(r"\d", "", str(name))
