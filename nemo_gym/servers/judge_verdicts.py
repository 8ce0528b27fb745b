"""What a judge said, read strictly: one of the verdicts asked for, or a score in its range. Pure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LONGEST_READ = 20_000
"""Characters at the end of what a judge said that are searched, and kept in the reply."""

_BEFORE = r"[ \t>#*_`\"'“(\[{-]*"
_AFTER = r"[ \t*_`\"'”)\]}.!]*"
_EDGE = " \t\r\n>#*-_`\"'“”()[]{}.!"
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_IS_NUMBER = re.compile(_NUMBER)
_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)
_OBJECT_LINE = re.compile(r"^[ \t]*\{", re.MULTILINE)


class NoVerdictError(Exception):
    """What a judge said holds no verdict that can be relied on; the message says why."""


@dataclass(frozen=True)
class Verdict:
    """``given`` is one of the verdicts as the settings spell it, or the score; ``reward`` what it is worth."""

    given: str | float
    reward: float


class VerdictFormat(BaseModel):
    """How a verdict is found, and what it is worth. Exactly one of ``rewards`` and ``score_range`` is set.

    - ``format: regex``: the last match of ``pattern`` counts, and its first group is the verdict. Two different ones
      on the line of the last match are none. Without a ``pattern`` it is the line ``VERDICT: ...`` or ``SCORE: ...``.
    - ``format: json``: the field ``field`` of the JSON object that is all the judge said, or the last fenced block, or
      what stands from the first line that begins with a brace to the end. A key that occurs twice is no verdict.
    - ``rewards``: the verdicts, in any case, and the reward of each.
    - ``score_range``: the least and the highest score, worth 0 and 1, and in proportion between them; what lies outside
      is no verdict. With ``pass_at`` a score is worth 1 from there on, else 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["regex", "json"] = "regex"
    pattern: str | None = None
    field: str = Field(default="verdict", min_length=1)
    rewards: dict[str, float] | None = None
    score_range: tuple[float, float] | None = None
    pass_at: float | None = None

    @field_validator("pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        if groups == 0:
            raise ValueError(f"{pattern!r} has no group that the verdict stands in")
        return pattern

    @field_validator("rewards")
    @classmethod
    def _rewards_are_told_apart(cls, rewards: dict[str, float] | None) -> dict[str, float] | None:
        if rewards is None:
            return None
        if len({_plain(label) for label in rewards} - {""}) != len(rewards) or len(rewards) < 2:
            raise ValueError("needed: two verdicts or more that differ in more than case and punctuation")
        if not all(math.isfinite(reward) for reward in rewards.values()):
            raise ValueError("needed: a finite number as the reward of each verdict")
        return rewards

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.rewards is None) == (self.score_range is None):
            raise ValueError("needed: exactly one of rewards and score_range")
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            raise ValueError("score_range: needed the least score, then a higher one")
        if self.pass_at is not None and self.score_range is None:
            raise ValueError("pass_at goes with score_range")
        return self

    def read(self, text: str) -> Verdict:
        """The verdict in a judge's words; else a ``NoVerdictError``."""
        if not text.strip():
            raise NoVerdictError("it said nothing")
        return self._verdict(self._by_json(text) if self.format == "json" else self._by_regex(text[-LONGEST_READ:]))

    def _by_regex(self, text: str) -> str:
        matches = list(re.finditer(self.pattern or self._usual_pattern(), text))
        if not matches:
            raise NoVerdictError("nothing in it has the form of a verdict")
        line = text.rfind("\n", 0, matches[-1].start()) + 1
        found = [next((group for group in match.groups() if group), "") for match in matches if match.start() >= line]
        if len({_plain(value) for value in found}) > 1:
            raise NoVerdictError(f"its last line with a verdict has several: {', '.join(found)}"[:200])
        return found[-1]

    def _usual_pattern(self) -> str:
        if self.rewards is None:
            return rf"(?im)^{_BEFORE}SCORE{_BEFORE}[:：][ \t*_`]*({_NUMBER})(?:[ \t]*/[ \t]*\d+)?{_AFTER}$"
        labels = "|".join(re.escape(label) for label in sorted(self.rewards, key=len, reverse=True))
        return rf"(?im)^{_BEFORE}VERDICT{_BEFORE}[:：]{_BEFORE}({labels}){_AFTER}$"

    def _by_json(self, text: str) -> Any:
        if len(text) > LONGEST_READ:
            raise NoVerdictError(f"it has {len(text)} characters; {LONGEST_READ} are read")
        for place in _json_places(text):
            try:
                value = json.loads(place, object_pairs_hook=_distinct)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and self.field in value:
                return value[self.field]
        raise NoVerdictError(f"it holds no JSON object with the key {self.field!r} where one was asked for")

    def _verdict(self, found: Any) -> Verdict:
        shown = f"{found!r:.80}"
        if self.rewards is not None:
            if isinstance(found, str):
                for label, reward in self.rewards.items():
                    if _plain(label) == _plain(found):
                        return Verdict(label, reward)
            raise NoVerdictError(f"{shown} is none of the verdicts {', '.join(self.rewards)}")
        score = _score(found)
        least, highest = self.score_range or (0.0, 1.0)
        if score is None or not least <= score <= highest:
            raise NoVerdictError(f"{shown} is no score from {least:g} to {highest:g}")
        if self.pass_at is not None:
            return Verdict(score, float(score >= self.pass_at))
        return Verdict(score, (score - least) / (highest - least))


def _plain(label: str) -> str:
    return label.strip(_EDGE).casefold()


def _score(found: Any) -> float | None:
    if isinstance(found, str):
        # From a pattern's group: all of it must be the number. "7,5" and "8 or 9" are none.
        return float(found) if _IS_NUMBER.fullmatch(found.strip()) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these keys, of which none may occur twice: which of the two was meant?"""
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise NoVerdictError(f"it has the key {key!r} more than once")
    return dict(pairs)


def _json_places(text: str) -> list[str]:
    """Where the object may stand: the whole text, the last fenced block, and the end from a line with a brace on."""
    fenced = [match[1] for match in _FENCED.finditer(text)][-1:]
    line = _OBJECT_LINE.search(text)
    return [text, *fenced, *([text[line.start() :]] if line else [])]
