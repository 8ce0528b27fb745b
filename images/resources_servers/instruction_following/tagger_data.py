"""Writes NLTK's English tagger as the JSON files that NLTK reads, from the pickle that it was published as before.

    python3 tagger_data.py averaged_perceptron_tagger.pickle taggers/averaged_perceptron_tagger_eng

Run when the image is built. Nothing but a set is made by the pickle: it can call nothing else.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

NAME = "averaged_perceptron_tagger_eng"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("__builtin__", "set"):
            return set
        raise pickle.UnpicklingError(f"the tagger's data are dicts, lists, texts, numbers and a set; found {name}")


def write_tagger(source: Path, folder: Path) -> None:
    """Write weights, tags of frequent words, and the tags' names."""
    with source.open("rb") as file:
        weights, tags_of_words, tags = _PlainUnpickler(file).load()
    folder.mkdir(parents=True)
    for part, value in (("weights", weights), ("tagdict", tags_of_words), ("classes", sorted(tags))):
        text = json.dumps(value, separators=(",", ":"))
        (folder / f"{NAME}.{part}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_tagger(*map(Path, sys.argv[1:]))
