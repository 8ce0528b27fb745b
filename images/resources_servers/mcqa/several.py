"""Whether an answer chooses more than one option: "B or C" chooses neither."""

from __future__ import annotations

import re

from images.resources_servers.mcqa.texts import LETTER, Options, end_of_text

_JOINT = r"(?:[/,;&+]|\b(?:or|and|plus|but\ also|as\ well\ as)\b)"
JOINED = re.compile(rf"(?=.*{_JOINT})(?:[\W_]|\b(?:or|and)\b){{1,40}}", re.IGNORECASE | re.DOTALL)
"""What stands between two places whose answers are both chosen."""

# What is said of an option: "C is wrong". Not so "C are both right".
_SAID_OF_IT = r"""
    [\s–—-]* \b (?: (?:is|are|was|were|being|do|does|did|can|could|would|has|have|had)(?:n['’]t)? | cannot | don['’]t
        | wrong | incorrect | false | fails? | fits? | seems? | looks? | lacks? | contradicts? | describes? | refers?
        | means? | lies? ) \b
    (?! \s+ (?: (?:both|all|also|equally|each) \s+ )? (?:right|correct|true|possible|acceptable|plausible|valid) \b )
"""
_SUBJECT = re.compile(_SAID_OF_IT, re.IGNORECASE | re.VERBOSE)
_FURTHER = re.compile(
    rf"""
    {_JOINT} [\s(\[{{*_"'“/$]* (?: (?:or|and)\b [\s(\[{{*_"'“$]* )?
    (?: (?:also|even|maybe|perhaps|possibly)\s+ )? (?: (?:option|choice)s?\s+ [(\[*_"'“]* )? (?P<letter>{LETTER})
    (?: [\s*_"'”$]* [)\].:}}*_"'”$]+
      | (?= \s* (?: \Z | {_JOINT} | (?:are|is)\b | {_SAID_OF_IT} ) | \s+[–—-]\s ) )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Where an answer ends and what is said about it begins.
_ABOUT_IT = re.compile(
    r"""
    (?<=[\w)][\w)])[.!?](?=\s|\Z) | n['’]t\b
    | \b(?: because | since | as | which | that | who | where | when | not | no | nor | neither | while | whereas | but
        | unlike | than | rather | instead | is | are | was | were | would | could | can | cannot | does | do | has
        | have | with | without | so | therefore | thus | if | due | given | wrong | incorrect | false )\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_WORD = re.compile(r"\w+")
_TEXT = re.compile(r"[\s*_\"'“–—-]*\w{2}")
_JOINING_WORDS = frozenset({"and", "or", "option", "choice"})


def names_another(place: str, position: int, first: str, options: Options) -> bool:
    """Whether a second option is chosen after the letter ``first``, which ends at ``position``."""
    ended = end_of_text(place, position, options.get(first.upper(), ""))
    words = [word for word in _WORD.findall(place[ended:]) if word.lower() not in _JOINING_WORDS]
    if set(words) - {first} and all(word in options for word in words):
        return True
    if ended != position and place[ended : ended + 1] in (".", "!", "?"):
        return False
    end = _ABOUT_IT.search(place, ended)
    is_chosen, begun = False, ended
    for match in _FURTHER.finditer(place, ended):
        letter = match["letter"]
        if letter.upper() not in options or letter.upper() == first.upper() or letter.islower() != first.islower():
            continue
        if is_chosen and place[ended : match.start()].strip():
            return True
        if end is not None and match.start() > end.start():
            break
        if not is_chosen and _WORD.search(place, begun, match.start()) and not _TEXT.match(place, match.end()):
            # "B. I thought of A, and of D": letters of options whose texts follow have theirs too.
            break
        ended = end_of_text(place, match.end(), options[letter.upper()])
        # "(A) and (C) are wrong" chooses neither of them.
        is_chosen = _SUBJECT.match(place, ended) is None
    return is_chosen
