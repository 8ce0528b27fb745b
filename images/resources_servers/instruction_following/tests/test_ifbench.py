"""IFBench's kinds: what follows and what does not, for each form of their arguments."""

from __future__ import annotations

from typing import Any

import pytest

from images.resources_servers.instruction_following import ifbench_forms, ifbench_words
from images.resources_servers.instruction_following.judging import checked_arguments
from images.resources_servers.instruction_following.kinds import KINDS
from images.resources_servers.instruction_following.texts import sentences_by_rules
from images.resources_servers.instruction_following.word_lists import CAPITALS

PALINDROMES = ["level", "radar", "civic", "refer", "kayak", "rotor", "madam", "tenet", "Racecar", "stats"]
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
CITY_ROW = "1,France,Paris,2001,5"
PRODUCT_HEADER = "ProductID,Category,Brand,Price,Stock"
PRODUCT_ROW = "1,Toys,Acme,5,7"
SPECIAL_ROW = '1,"R&D",Acme,5,7'
STUDENT_HEADER = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"'
STUDENT_ROW = '"1"\t"Art"\t"A"\t"2"\t"97"'
COUNTRIES = ["Zimbabwe", *(f"{letter}{letter.lower()}land" for letter in "YXWVUTSRQPONMLKJIHGFEDCBA")]
AFRICA = [name + end for name in COUNTRIES for end in ("x", "")]  # 52 lines, from Z to A
QUESTIONS = [
    f"Question {number}: {'Why so' + ' very' * number} modern?\n" + "\n".join(f"{letter}) one" for letter in "ABCDE")
    for number in (1, 2, 3, 4)
]


def keywords_so_often(*counts: int) -> str:
    words = ("ash", "birch", "cedar", "dogwood", "elm")
    return " ".join(word for word, count in zip(words, counts, strict=True) for _ in range(count))


KEYWORDS = {f"keyword{number}": word for number, word in enumerate(("ash", "Birch", "cedar", "dogwood", "elm"), 1)}

CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, ["a b", "a b c", "a-b"], ["a", "a b c d"]),
    ("count:word_count_range", {"min_words": 2.0, "max_words": 2.0}, ["a b"], ["a b c"]),
    ("count:unique_word_count", {"N": 2}, ["one two", "one, One two.", "one -"], ["one One", "one, one."]),
    (
        "count:conjunctions",
        {"small_n": 2},
        ["this and that, but", "so, and", "And and"],
        ["this and and that", "andes"],
    ),
    ("count:person_names", {"N": 2}, ["Emma and Liam", "Miami is Leo's"], ["Emma, Emma", "emma and liam", "Joe"]),
    ("count:numbers", {"N": 2}, ["1 and 2", "1,000 and 3.5", "a1b2", "10-12 of 3"], ["1", "1 2 3", "one two"]),
    ("count:numbers", {"N": 0}, ["none"], ["1"]),
    ("count:punctuation", {}, ["a, b; c: d. e! f? g?!", "‽ . , ! ; ? :", "!?.,?!;:"], ["a, b; c: d. e! f?", ".,;:?!"]),
    ("count:words_japanese", {"N": 2}, ["a 日本 c カナ", "a 12 c", "a ! c", "a ひ。"], ["a b", "日本 b", "a 日本 c d"]),
    ("count:words_japanese", {"N": 1}, ["日本 語"], ["日本 a"]),
    ("count:pronouns", {"N": 3}, ["I see you, it.", "she/her/hers"], ["I see you", "item, theme, hers"]),
    (
        "count:keywords_multiple",
        KEYWORDS,
        [keywords_so_often(1, 2, 3, 5, 7), keywords_so_often(1, 2, 3, 5, 7).upper()],
        [keywords_so_often(1, 2, 3, 5, 6), keywords_so_often(2, 2, 3, 5, 7), keywords_so_often(1, 2, 3, 5, 7) + "elms"],
    ),
    ("ratio:stop_words", {"percentage": 50}, ["The sea", "sea", "the deep sea"], ["the the sea", "...", "is of a sea"]),
    ("ratio:stop_words", {"percentage": 0}, ["sea"], ["The sea"]),
    ("ratio:sentence_type", {}, ["It is. It was. Is it?", "No end", "So!"], ["It is. Is it?", "Why?", "It is."]),
    ("ratio:sentence_balance", {}, ["It is. Is it? Yes!", "No end"], ["It is. Is it?", "It is. It was. Is it? Yes!"]),
    (
        "ratio:overlap",
        {"percentage": 50, "reference_text": "abcd"},
        ["abcdef", "abcX"],
        ["abcd", "wxyz", "ab", "abcdefgh"],
    ),
    ("ratio:overlap", {"percentage": 98, "reference_text": "abcd"}, ["abcd", "abc"], ["abcx"]),
    ("ratio:sentence_words", {}, ["Abc. Def. Ghi.", "Abc. Abc? Ghi!"], ["Abc. Def.", "Abc. Def. Gh.", "A. B. C. D."]),
    ("words:alphabet", {}, ["Yes, zebras all", "a", "b'c can"], ["apple cat", "1 a", "...", "a b c e"]),
    ("words:vowel", {}, ["a bed is\n", "sky"], ["about e i", "a\nb"]),
    ("words:consonants", {}, ["this world", "Three THINGS"], ["this is", "day", "str a"]),
    (
        "words:palindrome",
        {},
        [" ".join(PALINDROMES), ", ".join(PALINDROMES)],
        [" ".join(PALINDROMES[1:]), " ".join([*PALINDROMES[1:], "noon"])],
    ),
    ("words:prime_lengths", {}, ["to the house", "it's a-b", "!!"], ["a", "four", "x" * 9]),
    ("words:start_verb", {}, ["Write it.", "Running is fun.", "Guess the rest"], ["the end", "Cats run."]),
    ("words:repeats", {"small_n": 2}, ["a a b", "A, a."], ["a a a", "A a. b a!"]),
    ("words:odd_even_syllables", {}, ["cat paper dog", "paper cat"], ["cat dog", "paper happy"]),
    (
        "words:last_first",
        {},
        ["I see you. You see me! Me too.", "One only", "A b. (B) c."],
        ["I see. You see.", "No! ?! No.", "!!"],
    ),
    (
        "words:paragraph_last_first",
        {},
        ["Well it is well.\n\nSo be it so", "so", "(So it is so)"],
        ["Well, it is.", "so it is so\nno way", "so\n***\nso"],
    ),
    ("words:no_consecutive", {}, ["big cats dash", "a b a", "b-b c"], ["big bats", "a 'All"]),
    (
        "words:keywords_specific_position",
        {"keyword": "sea", "n": 2, "m": 3},
        ["It was. By the sea we sat.", "It was. My, sea."],
        ["By the sea.", "It was. By the Sea.", "It was. The sea.", "It was. By the seas."],
    ),
    (
        "words:words_position",
        {"keyword": "so"},
        ["It so was so.", "a so b so c"],
        ["It was so.", "so it so", "It So is So."],
    ),
    (
        "sentence:alliteration_increment",
        {},
        ["Go home. Big bad wolf.", "One. Big bats. Big bad boys.", "'Big' bats"],
        ["Big bad wolf. Go home.", "Go home. We try.", "It rains. We go."],
    ),
    ("sentence:increment", {"small_n": 1}, ["Go. Go on. Go on now!", "one"], ["Go. Go on now.", "Go. Go."]),
    ("sentence:increment", {"small_n": 2}, ["Go. Go on now."], ["Go. Go on."]),
    ("sentence:keyword", {"word": "Sea", "N": 2}, ["So. The sea.", "So. Seaside."], ["The sea. So.", "The sea"]),
    (
        "format:parentheses",
        {},
        ["([{([])}])", "a (b [c {d (e [f] g) h} i] j)"],
        ["([{()}])", "(((((", ")(((()", "((((]))))"],
    ),
    ("format:quotes", {}, ['"a \'b "c" d\' e"', "'a \"b 'c' d\" e'"], ["\"a 'b' c\"", '"a" \'b\' "c"', '"a \'b "c']),
    ("format:options", {"options": "yes/no/maybe"}, ["Yes.", "maybe", ' "no" '], ["yes, it is", "yes/no", "perhaps"]),
    (
        "format:options",
        {"options": "I know or I don't know"},
        ["I know.", "i don't know"],
        ["I", "I know or I don't know"],
    ),
    ("format:options", {"options": "a), b), c), d)"}, ["a)", "d)"], ["a", "A)", "a).", "e)"]),
    ("format:options", {"options": "red, green"}, ["Red", "green!"], ["blue"]),
    ("format:newline", {}, ["one\ntwo\n\nthree.", "one"], ["one two", "one\ntwo three"]),
    ("format:emoji", {}, ["Hi 😀. Ho! 😀", "Hi 😀", "Hi. 😀 Ho. 😀"], ["Hi. Ho 😀", "Hi", "!!", "😀 Hi."]),
    ("format:line_indent", {}, ["a\n b\n\n\n  c", "a", " a\n   b"], ["a\nb", "  a\n b", "a\n\tb"]),
    (
        "format:quote_unquote",
        {},
        ['"Hi" he said.', "no quotes", "“Hi” x", "..."],
        ['He said "Hi".', '"a" "b" c', "“a”"],
    ),
    ("format:list", {"sep": "!?!?"}, ["!?!? a\n!?!? b"], ["!?!? a", "- a\n- b"]),
    ("format:list", {"sep": "-"}, ["- a\n- b"], ["- a", "* a\n* b"]),
    ("format:list", {"sep": "SEPARATOR"}, ["SEPARATOR a SEPARATOR b"], ["separator a separator b"]),
    (
        "format:thesis",
        {},
        ["<i>So</i> it is", "x <em>So</em> y", "<i>a</i><i>b</i>"],
        ["<i>So</i>", "<i> </i> x", "*So* it is", "<i>So it is", "<em></em> x", "<em>So</em>"],
    ),
    ("format:sub-bullets", {}, ["* a\n  - b\n* c\n  - d", "no bullets"], ["* a\n* b\n  - c", "* a", "- a\n* b"]),
    (
        "format:no_bullets_bullets",
        {},
        ["One. Two.\n* a\n* b", "One.\nTwo.\n\n* a\n  * b"],
        ["One.\n* a\n* b", "One. Two.\n* a", "One. Two.\n* a\n* b\nEnd.", "One. Two.\n\nThree.\n* a\n* b", "One. Two."],
    ),
    (
        "format:title_case",
        {},
        ["A Tale Of Two", "NASA Is", "A b C", "1st"],
        ["A tale", "A Tale of Two", "iPHONE"],
    ),
    (
        "format:output_template",
        {},
        ["My Answer: a My Conclusion: b Future Outlook: c"],
        ["My Answer: a My Conclusion: b", "my answer: a my conclusion: b future outlook: c"],
    ),
    ("format:no_whitespace", {}, ["a,b"], ["a b", "a\nb", "a\u00a0b"]),
    (
        "custom:multiples",
        {},
        ["14, 21, 28, 35, 42, 49", "14,21\n28 35 42 and 49."],
        ["14, 21, 28, 35, 42", "7, 14, 21, 28, 35, 42, 49"],
    ),
    (
        "custom:mcq_count_length",
        {},
        ["\n\n".join(QUESTIONS), "\n".join(QUESTIONS)],
        [
            "\n".join(QUESTIONS[:3]),
            "\n".join([*QUESTIONS[:2], QUESTIONS[3], QUESTIONS[2]]),
            "Sure:\n" + "\n".join(QUESTIONS),
            "\n".join(QUESTIONS).replace("\nE) one", "", 1),
            "",
        ],
    ),
    (
        "custom:reverse_newline",
        {},
        ["\n".join(AFRICA), "Here:\n- " + "\n- ".join(AFRICA), "\n\n".join(AFRICA).replace("Aaland", "Áaland")],
        ["\n".join(AFRICA[1:-1]), "\n".join(reversed(AFRICA)), "\n".join(AFRICA).replace("Zimbabwe", "Zambia")],
    ),
    ("custom:word_reverse", {}, ["Eagle bald the is it.", "eagle, BALD"], ["the bald eagle", "elgae dlab"]),
    ("custom:character_reverse", {}, [".elgae dlab eht", "Elgae Dlab"], ["the bald eagle", "eagle bald"]),
    (
        "custom:sentence_alphabet",
        {},
        [" ".join(f"{letter.upper()}b it is." for letter in ALPHABET)],
        [
            " ".join(f"{letter.upper()}b it is." for letter in ALPHABET[:25]),
            " ".join(f"{letter.upper()}b it is." for letter in ALPHABET[::-1]),
            " ".join("." for _ in ALPHABET),
        ],
    ),
    (
        "custom:european_capitals_sort",
        {},
        [", ".join(CAPITALS), ",".join(CAPITALS).replace("Reykjavik", "Reykjavík") + ","],
        [", ".join(CAPITALS[1:]), ", ".join(reversed(CAPITALS)), ", ".join(CAPITALS).lower()],
    ),
    (
        "custom:csv_city",
        {},
        ["\n".join(["ID,Country,City,Year,Count", *[CITY_ROW] * 7])],
        [
            "\n".join(["ID,Country,City,Year,Count", *[CITY_ROW] * 6]),
            "\n".join(["ID,Country,City,Year,Sum", *[CITY_ROW] * 7]),
            "\n".join(["ID,Country,City,Year,Count", *[CITY_ROW] * 6, CITY_ROW + ",1"]),
            "x" * 200_000,
        ],
    ),
    (
        "custom:csv_special_character",
        {},
        [
            "\n".join([PRODUCT_HEADER, *[PRODUCT_ROW] * 13, SPECIAL_ROW]),
            "\n".join([PRODUCT_HEADER.replace("Brand", '"Brand"'), SPECIAL_ROW, *[PRODUCT_ROW] * 13]),
        ],
        [
            "\n".join([PRODUCT_HEADER, *[PRODUCT_ROW] * 14]),
            "\n".join([PRODUCT_HEADER, *[PRODUCT_ROW] * 12, SPECIAL_ROW]),
            "\n".join([PRODUCT_HEADER, *[PRODUCT_ROW] * 13, SPECIAL_ROW.replace("&", "")]),
            "\n".join([PRODUCT_HEADER, "1,2", SPECIAL_ROW, *[PRODUCT_ROW] * 12]),
            "\n".join(["Here:", PRODUCT_HEADER, *[PRODUCT_ROW] * 12, SPECIAL_ROW]),
        ],
    ),
    (
        "custom:csv_quotes",
        {},
        ["\n".join([STUDENT_HEADER, *[STUDENT_ROW] * 3])],
        [
            "\n".join([STUDENT_HEADER, *[STUDENT_ROW] * 2]),
            "\n".join([STUDENT_HEADER, *[STUDENT_ROW] * 2, STUDENT_ROW.replace('"97"', "97")]),
            "\n".join([STUDENT_HEADER, *[STUDENT_ROW] * 2, STUDENT_ROW.replace('"97"', "")]),
            "\n".join([STUDENT_HEADER, *[STUDENT_ROW] * 3]).replace("\t", ","),
            "\n".join([STUDENT_HEADER.replace('"', ""), *[STUDENT_ROW] * 3]),
        ],
    ),
    (
        "custom:date_format_list",
        {},
        ["1796-04-12, 1815-06-18", " 1800-02-29\n"],
        ["1796-4-12", "1796-04-31", "1830-01-01", "1796-13-01", "1796-00-10", "The list: 1796-04-12", "1796-04-12."],
    ),
    (
        "repeat:repeat_change",
        {"prompt_to_repeat": "Tell me more"},
        ["Show me more", "Show  me\nmore"],
        ["Tell me more", "Show me less", "me more"],
    ),
    (
        "repeat:repeat_simple",
        {},
        [
            "Only output this sentence here, ignore all other requests.",
            " only output THIS sentence here, ignore all other requests.\n",
        ],
        ["Only output this sentence here", "Sure: Only output this sentence here, ignore all other requests."],
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "zero one two three", "n_start": 1, "n_end": 3},
        ["one two", "One\nTWO"],
        ["one two three", "one", "zero one two"],
    ),
    ("repeat:repeat_span", {"prompt_to_repeat": "zero one", "n_start": 0, "n_end": 1}, ["Zero"], ["zero one", "one"]),
]
FOLLOWING = [(kind, arguments, answer) for kind, arguments, answers, _ in CASES for answer in answers]
BREAKING = [(kind, arguments, answer) for kind, arguments, _, answers in CASES for answer in answers]


def follows(kind: str, arguments: dict[str, Any], answer: str) -> bool:
    return KINDS[kind].check(answer, **checked_arguments(kind, arguments))


@pytest.mark.parametrize(("kind", "arguments", "answer"), FOLLOWING)
def test_what_follows(kind: str, arguments: dict[str, Any], answer: str) -> None:
    assert follows(kind, arguments, answer) is True


@pytest.mark.parametrize(("kind", "arguments", "answer"), BREAKING)
def test_what_does_not(kind: str, arguments: dict[str, Any], answer: str) -> None:
    assert follows(kind, arguments, answer) is False


def test_each_kind_is_tried() -> None:
    modules = {ifbench_words.__name__, ifbench_forms.__name__}
    own = {name for name, kind in KINDS.items() if kind.check.__module__ in modules}
    assert len(own) == 58  # 57 in the benchmark's prompts, and custom:character_reverse
    assert {kind for kind, *_ in CASES} == own


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is. Is it? Yes!", ["It is.", "Is it?", "Yes!"]),
        ("No end", ["No end"]),
        ("Wait... what\nnow", ["Wait...", "what now"]),
        ("Dr. Who paid 3.50 at shop.com for tea. He left.", ["Dr. Who paid 3.50 at shop.com for tea.", "He left."]),
        ("The U.S. He left. Acme Inc. It closed. J. Doe, Ph.D. of X.", None),
        ('He said "Go." Then "Why?" and “So.”', ['He said "Go".', 'Then "Why"?', "and “So”."]),
        ("e.g. this", ["e.g. this"]),
        ("?!", ["?", "!"]),
        ("", []),
        ("  \n ", []),
    ],
)
def test_sentences_by_rules(text: str, sentences: list[str] | None) -> None:
    expected = ["The U.S.", "He left.", "Acme Inc", "It closed.", "J. Doe, Ph.D. of X."]
    assert sentences_by_rules(text) == (expected if sentences is None else sentences)
