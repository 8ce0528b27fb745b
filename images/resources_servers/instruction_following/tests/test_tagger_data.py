"""The tagger's data: from a pickle that can do nothing else, to the files that NLTK reads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from images.resources_servers.instruction_following.tagger_data import write_tagger


def test_a_pickle_becomes_three_files(tmp_path: Path) -> None:
    source = tmp_path / "tagger.pickle"
    source.write_bytes(pickle.dumps(({"bias": {"NN": 0.5}}, {"the": "DT"}, {"NN", "DT"}), protocol=2))
    folder = tmp_path / "taggers" / "eng"
    write_tagger(source, folder)
    read = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()}
    assert read == {
        "averaged_perceptron_tagger_eng.weights.json": {"bias": {"NN": 0.5}},
        "averaged_perceptron_tagger_eng.tagdict.json": {"the": "DT"},
        "averaged_perceptron_tagger_eng.classes.json": ["DT", "NN"],
    }


def test_a_pickle_that_would_call_something_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "tagger.pickle"
    source.write_bytes(pickle.dumps((Path("x"), {}, set()), protocol=2))
    with pytest.raises(pickle.UnpicklingError, match="found Posix"):
        write_tagger(source, tmp_path / "eng")
    assert not (tmp_path / "eng").exists()
