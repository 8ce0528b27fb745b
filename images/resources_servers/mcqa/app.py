"""Multiple choice: find the letter that a model chose, and compare it with the right one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from images.resources_servers.mcqa.choices import DEFAULT_FORMATS, AnswerFormat, find_answer
from images.resources_servers.mcqa.texts import Options
from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings


class Option(BaseModel):
    """One choice."""

    letter: str = Field(min_length=1)
    text: str


class Row(VerifyRequest):
    """What a row must carry. ``answer_regex`` goes before the server's own setting."""

    question: str
    options: list[Option] = Field(min_length=1)
    expected_answer: str
    answer_regex: str | None = None

    _regex_compiles = field_validator("answer_regex")(lambda value: _checked_regex(value))

    @field_validator("options")
    @classmethod
    def _letters_are_distinct(cls, options: list[Option]) -> list[Option]:
        letters = _letters(options)
        if len(set(letters)) != len(letters):
            raise ValueError(f"their letters are not distinct: {', '.join(letters)}")
        return options

    @field_validator("expected_answer")
    @classmethod
    def _answer_is_an_option(cls, answer: str, others: ValidationInfo) -> str:
        letters = _letters(others.data.get("options") or ())
        if letters and answer.strip().upper() not in letters:
            raise ValueError(f"{answer!r} is none of the options' letters {', '.join(letters)}")
        return answer

    def texts(self) -> Options:
        return dict(zip(_letters(self.options), (option.text for option in self.options), strict=True))

    def right_letter(self) -> str:
        return self.expected_answer.strip().upper()


def _letters(options: Iterable[Option]) -> list[str]:
    return [option.letter.strip().upper() for option in options]


class McqaSettings(ResourcesSettings):
    """Which forms of an answer are looked for, in order: the first that is found counts."""

    answer_formats: tuple[AnswerFormat, ...] = DEFAULT_FORMATS
    answer_regex: str | None = None

    _regex_compiles = field_validator("answer_regex")(lambda value: _checked_regex(value))


class Mcqa(ResourcesServer):
    """Reward 1.0 for the right letter, else 0.0."""

    settings: McqaSettings

    async def verify(self, row: Row) -> JsonDict:
        regex = row.answer_regex or self.settings.answer_regex
        formats: Sequence[AnswerFormat] = self.settings.answer_formats
        if regex is not None and "regex" not in formats:
            formats = ("regex", *formats)
        texts = row.texts()
        letter, form = find_answer(row.text(), texts, formats, regex)
        # Some questions have an option twice: both of its letters say the same.
        right = letter is not None and texts[letter] == texts[row.right_letter()]
        return {"reward": float(right), "extracted_answer": letter, "answer_format": form}

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        if replies:
            answered = sum(reply.get("extracted_answer") is not None for reply in replies)
            by_expected: dict[str, list[Any]] = {}
            for reply in replies:
                by_expected.setdefault(str(reply.get("expected_answer")), []).append(reply.get("extracted_answer"))
            metrics["agent_metrics"] |= {
                "answered_rate": answered / len(replies),
                "answer_formats": _counts(reply.get("answer_format") for reply in replies),
                "answers_by_expected": {expected: _counts(given) for expected, given in sorted(by_expected.items())},
            }
            metrics["key_metrics"]["answered_rate"] = answered / len(replies)
        return metrics


def _counts(values: Iterable[Any]) -> dict[str, int]:
    return dict(sorted(Counter("none" if value is None else str(value) for value in values).items()))


def _checked_regex(value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
    return value


if __name__ == "__main__":
    raise SystemExit(run_server(Mcqa))
