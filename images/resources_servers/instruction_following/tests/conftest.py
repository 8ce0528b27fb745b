"""A little data in the form of NLTK's own, so that no test needs the network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import nltk
import pytest

from images.resources_servers.instruction_following import texts

TAGGER = "taggers/averaged_perceptron_tagger_eng/averaged_perceptron_tagger_eng"
FILES = {
    "tokenizers/punkt_tab/english/abbrev_types.txt": "dr\nmr\n",
    "tokenizers/punkt_tab/english/collocations.tab": "",
    "tokenizers/punkt_tab/english/sent_starters.txt": "he\n",
    "tokenizers/punkt_tab/english/ortho_context.tab": "",
    "corpora/stopwords/english": "a\nis\nof\nthe\n",
    f"{TAGGER}.weights.json": json.dumps(
        {"i suffix ing": {"VBG": 1.0}, "bias": {"NN": 0.5}, "i+1 word the": {"VBP": 0.25, "NN": -0.5}}
    ),
    f"{TAGGER}.tagdict.json": '{"Write": "VB", "the": "DT"}',
    f"{TAGGER}.classes.json": '["DT","NN","VB","VBG","VBP"]',
}
CACHED = (texts._punkt, texts._tagger, texts.stop_words)


@pytest.fixture(autouse=True, scope="package")
def nltk_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("nltk_data")
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    before = list(nltk.data.path)
    nltk.data.path[:] = [str(root)]
    yield root
    nltk.data.path[:] = before
    for function in CACHED:
        function.cache_clear()
