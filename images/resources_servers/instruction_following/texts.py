"""What several kinds read an answer as: words, tokens, sentences, a language. Libraries are loaded at first use.

NLTK's data for English (``tokenizers/punkt_tab``, ``corpora/stopwords``, ``taggers/averaged_perceptron_tagger_eng``)
lie where ``NLTK_DATA`` says.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

PUNCTUATION = string.punctuation
# What surrounds a word: punctuation and spaces, but no other white space.
EDGES = PUNCTUATION + " "
_NO_PUNCTUATION = str.maketrans("", "", PUNCTUATION)


def word_count(text: str) -> int:
    """How many runs of letters, digits and underscores there are."""
    return sum(1 for _ in re.finditer(r"\w+", text))


def without_punctuation(text: str) -> str:
    """The text without ASCII punctuation; words on both sides of it run together."""
    return text.translate(_NO_PUNCTUATION)


def ascii_only(text: str) -> str:
    """The text with its accents taken off, and without what is not ASCII then."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


# -- sentences by rules -------------------------------------------------------------------------------------------

_KEPT, _END = "\ue000", "\ue001"  # a full stop that ends no sentence; the end of one
_STARTERS = (
    r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\s|She\s|It\s|They\s|Their\s|Our\s|We\s|But\s|However\s|That\s|This\s|Wherever)"
)
_COMPANY = r"(Inc|Ltd|Jr|Sr|Co)"


def _ellipsis(match: re.Match[str]) -> str:
    return _KEPT * len(match[0]) + _END


# Applied in this order: each sees what those before it left.
_RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(Mr|St|Mrs|Ms|Dr)\.", rf"\1{_KEPT}"),
    (r"\.(com|net|org|io|gov|edu|me)", rf"{_KEPT}\1"),
    (r"([0-9])\.([0-9])", rf"\1{_KEPT}\2"),
    (r"\.{2,}", _ellipsis),
    (r"Ph\.D\.", f"Ph{_KEPT}D{_KEPT}"),
    (r"\s([A-Za-z])\. ", rf" \1{_KEPT} "),
    (rf"([A-Z]\.[A-Z]\.(?:[A-Z]\.)?) {_STARTERS}", rf"\1{_END} \2"),
    (r"([A-Za-z])\.([A-Za-z])\.([A-Za-z])\.", rf"\1{_KEPT}\2{_KEPT}\3{_KEPT}"),
    (r"([A-Za-z])\.([A-Za-z])\.", rf"\1{_KEPT}\2{_KEPT}"),
    (rf" {_COMPANY}\. {_STARTERS}", rf" \1{_END} \2"),
    (rf" {_COMPANY}\.", rf" \1{_KEPT}"),
    (r" ([A-Za-z])\.", rf" \1{_KEPT}"),
    (r"\.”", "”."),
    (r"\.\"", '".'),
    (r"!\"", '"!'),
    (r"\?\"", '"?'),
    (r"[.?!]", rf"\g<0>{_END}"),
)


def sentences_by_rules(text: str) -> list[str]:
    """Sentences as IFBench counts them: at every ``.``, ``?`` and ``!`` that no rule takes for something else.

    Rules know some titles, companies, initials, numbers and web addresses; an ellipsis ends a sentence. What follows
    the last end is a sentence too. The rules, with their order, are those that the benchmark's checker applies.
    """
    text = f" {text}  ".replace("\n", " ")
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    found = [sentence.strip() for sentence in text.replace(_KEPT, ".").split(_END)]
    return found if found[-1] else found[:-1]


# -- NLTK ---------------------------------------------------------------------------------------------------------


@cache
def _nltk() -> Any:
    import nltk
    import nltk.redos

    # NLTK gives up on a text after some seconds on the clock: a verdict would depend on how busy the machine is. What
    # takes too long here is ended from outside, by the computing time that it used.
    nltk.redos.DEFAULT_TIMEOUT = 3600.0
    return nltk


@cache
def _punkt() -> Any:
    return _nltk().tokenize.punkt.PunktTokenizer("english")


@cache
def _treebank() -> Any:
    return _nltk().tokenize.NLTKWordTokenizer()


@cache
def _tagger() -> Any:
    return _nltk().tag.PerceptronTagger()


@cache
def stop_words() -> frozenset[str]:
    """NLTK's English stop words."""
    return frozenset(_nltk().corpus.stopwords.words("english"))


def sentences(text: str) -> Iterator[str]:
    """Sentences as NLTK's Punkt model for English splits them, one by one."""
    for start, end in _punkt().span_tokenize(text):
        yield text[start:end]


def tokens(text: str) -> Iterator[str]:
    """Words and punctuation marks as NLTK's ``word_tokenize`` splits them, one by one."""
    for sentence in sentences(text):
        yield from _treebank().tokenize(sentence)


def first_tag(text: str) -> str:
    """The part of speech (Penn Treebank) of the first token; nothing of an empty text."""
    # The tagger looks two tokens ahead, so that those behind cannot change the first one's tag.
    tagged = _tagger().tag(list(islice(tokens(text), 3)))
    return str(tagged[0][1]) if tagged else ""


# -- other libraries ----------------------------------------------------------------------------------------------


def language_of(text: str) -> str | None:
    """The code of the language that langdetect finds; None where it finds nothing to go by.

    langdetect draws random numbers: they are seeded, so that the same text is always of the same language.
    """
    import langdetect_rs

    langdetect_rs.DetectorFactory.seed = 0
    try:
        return str(langdetect_rs.detect(text))
    except langdetect_rs.LangDetectException:
        return None


def is_emoji(character: str) -> bool:
    import emoji

    return bool(emoji.is_emoji(character))


def syllable_count(word: str) -> int:
    import syllapy

    return int(syllapy.count(word))
