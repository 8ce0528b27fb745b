"""Words that kinds look for, and the codes of the languages that can be told."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CONJUNCTIONS = frozenset(_words("and but for nor or so yet"))

PRONOUNS = frozenset(
    _words(
        "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her "
        "hers herself it its itself they them their theirs themselves"
    )
)

# The names that the prompts of count:person_names list.
PERSON_NAMES = _words(
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin "
    "Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria "
    "Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan "
    "Stella Jonathan"
)

# European capitals north of 45 degrees, from north to south, as custom:european_capitals_sort has them.
CAPITALS = _words(
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw "
    "London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
)

# What langdetect can answer.
LANGUAGES = frozenset(
    _words(
        "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl "
        "pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw"
    )
)
