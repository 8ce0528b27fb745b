"""IFBench's kinds ``count``, ``ratio``, ``words``, ``sentence``, as its public checker has them: see README."""

from __future__ import annotations

import re
import string
from collections import Counter, deque
from itertools import islice, pairwise

from images.resources_servers.instruction_following.kinds import Count, Ordinal, Percentage, Phrase, Text, kind
from images.resources_servers.instruction_following.texts import (
    EDGES,
    first_tag,
    sentences_by_rules,
    stop_words,
    syllable_count,
    tokens,
    without_punctuation,
    word_count,
)
from images.resources_servers.instruction_following.word_lists import CONJUNCTIONS, PERSON_NAMES, PRONOUNS

# Tolerance of ratio:overlap, in percentage points.
OVERLAP_TOLERANCE = 2
LEAST_PALINDROMES, LEAST_PALINDROME_LENGTH = 10, 5


# -- count --------------------------------------------------------------------------------------------------------


@kind("count:word_count_range")
def has_words_in_range(answer: str, min_words: Count, max_words: Count) -> bool:
    return min_words <= word_count(answer) <= max_words


@kind("count:unique_word_count")
def has_unique_words(answer: str, N: Count) -> bool:
    """A word that is nothing but punctuation counts too, once."""
    return len({word.strip(EDGES) for word in answer.lower().split()}) >= N


@kind("count:conjunctions")
def has_conjunctions(answer: str, small_n: Count) -> bool:
    """Each spelling counts, with the punctuation around it: "and", "And" and "and," are three."""
    return len({word for word in answer.split() if word.strip(EDGES).lower() in CONJUNCTIONS}) >= small_n


@kind("count:person_names")
def has_person_names(answer: str, N: Count) -> bool:
    """Also inside of words: "Miami" mentions Mia."""
    return sum(name in answer for name in PERSON_NAMES) >= N


@kind("count:numbers")
def has_so_many_numbers(answer: str, N: Count) -> bool:
    """Exactly so many runs of digits, once punctuation is taken out: "1,000" and "3-4" are one each."""
    return len(re.findall(r"\d+", without_punctuation(answer))) == N


@kind("count:punctuation")
def has_every_punctuation_mark(answer: str) -> bool:
    """An interrobang, and each of the six marks outside of it."""
    if not any(mark in answer for mark in ("?!", "!?", "‽")):
        return False
    pair = "?!" if "?!" in answer else "!?"
    return set(".,!?;:") <= set(answer.replace(pair, "", 1))


@kind("count:words_japanese")
def has_japanese_words(answer: str, N: Ordinal) -> bool:
    """Every N-th word has a kana or kanji; one that is a number, or nothing but punctuation, need not."""
    due = (word.strip(EDGES) for word in answer.split()[N - 1 :: N])
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in due)


_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


@kind("count:pronouns")
def has_pronouns(answer: str, N: Count) -> bool:
    words = without_punctuation(answer.replace("/", " ").lower()).split()
    return sum(word in PRONOUNS for word in words) >= N


@kind("count:keywords_multiple")
def has_keywords_so_often(
    answer: str, keyword1: Phrase, keyword2: Phrase, keyword3: Phrase, keyword4: Phrase, keyword5: Phrase
) -> bool:
    """Exactly 1, 2, 3, 5 and 7 times, also inside of words."""
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    text = answer.lower()
    return [text.count(keyword.lower()) for keyword in keywords] == [1, 2, 3, 5, 7]


# -- ratio --------------------------------------------------------------------------------------------------------


@kind("ratio:stop_words")
def has_few_stop_words(answer: str, percentage: Percentage) -> bool:
    words = re.findall(r"\w+", answer)
    if not words:
        return False
    stopping = stop_words()
    return 100 * sum(word.lower() in stopping for word in words) / len(words) <= percentage


@kind("ratio:sentence_type")
def has_two_statements_per_question(answer: str) -> bool:
    ends = _sentence_ends(answer)
    return ends["."] == 2 * ends["?"]


@kind("ratio:sentence_balance")
def has_balanced_sentence_types(answer: str) -> bool:
    ends = _sentence_ends(answer)
    return ends["."] == ends["?"] == ends["!"]


def _sentence_ends(answer: str) -> Counter[str]:
    return Counter(sentence[-1:] for sentence in sentences_by_rules(answer))


@kind("ratio:overlap")
def overlaps_with_text(answer: str, reference_text: Text, percentage: Percentage) -> bool:
    """Of the answer's sequences of three characters, the share that the text has too."""
    own, others = (_character_trigrams(text) for text in (answer, reference_text))
    if not own:
        return False
    return percentage - OVERLAP_TOLERANCE <= 100 * len(own & others) / len(own) <= percentage + OVERLAP_TOLERANCE


def _character_trigrams(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}


@kind("ratio:sentence_words")
def is_three_sentences_of_one_length(answer: str) -> bool:
    """In characters. That all their words differ is asked for, and not checked."""
    sentences = sentences_by_rules(answer)
    return len(sentences) == 3 and len({len(sentence) for sentence in sentences}) == 1


# -- words --------------------------------------------------------------------------------------------------------


@kind("words:alphabet")
def walks_the_alphabet(answer: str) -> bool:
    letters = [word[0].lower() for word in without_punctuation(answer).split()]
    alphabet = string.ascii_lowercase
    if not letters or letters[0] not in alphabet:
        return False
    start = alphabet.index(letters[0])
    return all(letter == alphabet[(start + step) % 26] for step, letter in enumerate(letters))


@kind("words:vowel")
def is_paragraph_of_three_vowels(answer: str) -> bool:
    text = answer.strip().lower()
    return "\n" not in text and len(set("aeiou") & set(text)) <= 3


_CLUSTER = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")


@kind("words:consonants")
def has_consonant_clusters(answer: str) -> bool:
    return all(_CLUSTER.search(word) for word in answer.lower().split())


@kind("words:palindrome")
def has_palindromes(answer: str) -> bool:
    words = without_punctuation(answer).lower().split()
    found = sum(len(word) >= LEAST_PALINDROME_LENGTH and word == word[::-1] for word in words)
    return found >= LEAST_PALINDROMES


@kind("words:prime_lengths")
def has_words_of_prime_length(answer: str) -> bool:
    return all(_is_prime(len(word)) for word in without_punctuation(answer).split())


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@kind("words:start_verb")
def starts_with_verb(answer: str) -> bool:
    return "VB" in first_tag(answer)


@kind("words:repeats")
def repeats_no_word_too_often(answer: str, small_n: Count) -> bool:
    words = Counter(without_punctuation(answer.lower()).split())
    return max(words.values(), default=0) <= small_n


@kind("words:odd_even_syllables")
def alternates_syllable_parity(answer: str) -> bool:
    parities = (syllable_count(word) % 2 for word in without_punctuation(answer).lower().split())
    return all(one != next_one for one, next_one in pairwise(parities))


@kind("words:last_first")
def chains_sentences_by_words(answer: str) -> bool:
    """In any case. A sentence of nothing but punctuation breaks the chain."""
    return all(
        (last := one.rstrip(EDGES).lower().split()[-1:]) and last == following.lstrip(EDGES).lower().split()[:1]
        for one, following in pairwise(sentences_by_rules(answer))
    )


@kind("words:paragraph_last_first")
def ends_paragraphs_as_they_start(answer: str) -> bool:
    """A paragraph is a line that is not blank; one of nothing but punctuation breaks the rule."""
    lines = (line.strip().lower() for line in answer.split("\n"))
    paragraphs = (line.strip(EDGES).split() for line in lines if line)
    return all(words and words[0] == words[-1] for words in paragraphs)


@kind("words:no_consecutive")
def shares_no_first_letter(answer: str) -> bool:
    words = without_punctuation(answer.lower()).split()
    return all(word[0] != next_word[0] for word, next_word in pairwise(words))


@kind("words:keywords_specific_position")
def has_keyword_at(answer: str, keyword: Phrase, n: Ordinal, m: Ordinal) -> bool:
    """As the m-th token of the n-th sentence, in the same case; punctuation marks are tokens too."""
    sentences = sentences_by_rules(answer)
    return n <= len(sentences) and next(islice(tokens(sentences[n - 1]), m - 1, None), None) == keyword


@kind("words:words_position")
def has_keyword_second_and_second_to_last(answer: str, keyword: Phrase) -> bool:
    """In the same case; punctuation marks are tokens too."""
    following = tokens(answer)
    start = list(islice(following, 2))
    if start[1:] != [keyword]:  # most answers end here, before all of them is split
        return False
    return deque([*start, *following], maxlen=2)[0] == keyword


# -- sentence -----------------------------------------------------------------------------------------------------


@kind("sentence:alliteration_increment")
def has_growing_alliteration(answer: str) -> bool:
    """Each sentence has more words in runs of the same first letter than the one before."""
    before = -1
    for sentence in sentences_by_rules(answer):
        letters = [word[0] for word in (word.lstrip(EDGES) for word in sentence.lower().split()) if word]
        same = [one == next_one for one, next_one in pairwise(letters)]
        # A run of n words has n - 1 pairs.
        now = sum(same) + sum(pair and not last for last, pair in zip([False, *same], same, strict=False))
        if now <= before:
            return False
        before = now
    return True


@kind("sentence:increment")
def has_growing_sentences(answer: str, small_n: Count) -> bool:
    lengths = [len(without_punctuation(sentence).split()) for sentence in sentences_by_rules(answer)]
    return all(next_one == one + small_n for one, next_one in pairwise(lengths))


@kind("sentence:keyword")
def has_keyword_in_sentence(answer: str, word: Phrase, N: Ordinal) -> bool:
    """In any case, also inside of a word."""
    sentences = sentences_by_rules(answer)
    return len(sentences) >= N and word.lower() in sentences[N - 1].lower()
