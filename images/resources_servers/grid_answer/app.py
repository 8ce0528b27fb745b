"""Puzzles whose answer is one or more grids of digits: find the grids that a model answered with, and compare them."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Annotated

from pydantic import Field

from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer

Grid = list[list[int]]
"""Rows of cells from 0 to 9, as an answer gives them: rows of different lengths are possible, and never right."""

Cell = Annotated[int, Field(ge=0, le=9)]
ExpectedGrid = Annotated[list[Annotated[list[Cell], Field(min_length=1)]], Field(min_length=1)]


class Row(VerifyRequest):
    """What a row must carry: the grids that are right, in order."""

    expected_grids: list[ExpectedGrid] = Field(min_length=1)


class GridAnswer(ResourcesServer):
    """Reward 1.0 when every grid is right in size and in each cell, else 0.0."""

    async def verify(self, row: Row) -> JsonDict:
        expected = row.expected_grids
        answered = last_grids(row.text(), len(expected))
        right = [ours == theirs for ours, theirs in zip(answered, expected, strict=False)]
        return {
            "reward": float(len(answered) == len(expected) and all(right)),
            "extracted_answer": answered or None,
            "grids_right": sum(right) / len(expected),
        }

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        if replies:
            answered = sum(reply.get("extracted_answer") is not None for reply in replies) / len(replies)
            metrics["agent_metrics"]["answered_rate"] = metrics["key_metrics"]["answered_rate"] = answered
        return metrics


# The end of an answer, which is all that is searched: three grids of 30 by 30 cells are some 6,000 characters.
_SEARCHED_CHARS = 100_000


def last_grids(text: str, count: int) -> list[Grid]:
    """The last ``count`` grids of a text, in its order; none at all when it holds fewer.

    Grids are lists of lists (also all of them in one more list), or else lines of digits with something between them,
    or of rows in brackets.
    """
    text = text[-_SEARCHED_CHARS:]
    for found in (_listed_grids(text), _drawn_grids(text)):
        if found:
            return found[-count:] if len(found) >= count else []
    return []


# Between cells and rows stands one comma, once whitespace is taken for commas: [[1 2] [3 4]] reads like [[1,2],[3,4]].
_BETWEEN = re.compile(r"[\s,]+")
_LISTED = re.compile(r"\[,?(?:\[,?\d(?:,\d)*,?\],?)+\]")
_LISTED_ROW = re.compile(r"\[([\d,]+)\]")


def _listed_grids(text: str) -> list[Grid]:
    compact = _BETWEEN.sub(",", text)
    return [
        [[int(cell) for cell in row[1].split(",") if cell] for row in _LISTED_ROW.finditer(grid[0])]
        for grid in _LISTED.finditer(compact)
    ]


_NEXT_CELL = r"(?:(?:[ \t]*[|,][ \t]*|[ \t]+)\d)"
_DRAWN_ROW = re.compile(rf"[|\s]*\d{_NEXT_CELL}+[|,\s]*")
_BRACKETED_ROW = re.compile(rf"\s*\[\s*\d{_NEXT_CELL}*\s*\],?\s*")
_RULE = re.compile(r"(?=.*-)(?=.*[|+])[-|+:\s]+")
_BLANK_LINE = re.compile(r"\n\s*\n")


def _drawn_grids(text: str) -> list[Grid]:
    grids: list[Grid] = []
    for block in _BLANK_LINE.split(text):
        lines = [line for line in block.split("\n") if not _RULE.fullmatch(line)]
        of_lists = sum(line.lstrip()[:1] == "[" or line.count("[") != line.count("]") for line in lines)
        for pattern, group in groupby(lines, _pattern_of_row):
            rows = [[int(cell) for cell in re.findall(r"\d", line)] for line in group]
            # Rows in brackets beside other lines of lists are the rest of one that is no grid, or was broken off.
            if pattern is _DRAWN_ROW or (pattern is _BRACKETED_ROW and 1 < len(rows) == of_lists):
                grids.append(rows)
    return grids


def _pattern_of_row(line: str) -> re.Pattern[str] | None:
    return next((pattern for pattern in (_DRAWN_ROW, _BRACKETED_ROW) if pattern.fullmatch(line)), None)


if __name__ == "__main__":
    raise SystemExit(run_server(GridAnswer))
