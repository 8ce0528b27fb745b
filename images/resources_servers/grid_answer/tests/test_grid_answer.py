from __future__ import annotations

import time
from typing import Any

import pytest

from images.resources_servers.grid_answer.app import GridAnswer, last_grids
from nemo_gym.servers.testing import serving

GRID = [[0, 1, 2], [3, 4, 5]]
OTHER = [[7], [8]]


@pytest.mark.parametrize(
    "text",
    [
        "[[0,1,2],[3,4,5]]",
        "The rule is a shift.\n```json\n[[0, 1, 2],\n [3, 4, 5]]\n```",
        "[[9,9],[9,9]] is the input, so the output is [[0, 1, 2], [3, 4, 5]].",
        "[[0 1 2]\n [3 4 5]]",
        "[[0,1,2],[3,4,5],]",
        "Output:\n0 1 2\n3 4 5\n",
        "first\n9 9\n\nthen\n  0 1 2 \n  3 4 5\nwhich is the answer",
        "0,1,2\n3,4,5",
        "| 0 | 1 | 2 |\n| 3 | 4 | 5 |",
        "0, 1, 2,\n3, 4, 5",
        "| 0 | 1 | 2 |\n|---|:-:|---|\n| 3 | 4 | 5 |",
        "0 | 1 | 2\n--- | --- | ---\n3 | 4 | 5",
        "+---+---+---+\n| 0 | 1 | 2 |\n+---+---+---+\n| 3 | 4 | 5 |\n+---+---+---+",
        "[0, 1, 2]\n[3, 4, 5]",
        "The output is:\n```\n[0,1,2],\n[3,4,5]\n```\nas [1] says",
        "[9 9]\n[9 9]\n\n  [0 1 2]\r\n  [3 4 5]\r\n",
        "1 2\n\n[[0,1,2],[3,4,5]]",  # lists go before drawings
        "[[[0,1,2],[3,4,5]]]",
    ],
)
def test_a_grid_is_found_in_the_forms_that_models_write(text: str) -> None:
    assert last_grids(text, 1) == [GRID]


@pytest.mark.parametrize("text", ["[[0,1,2],[3,4,5]]\n[[7],[8]]", "[[[0,1,2],[3,4,5]],[[7],[8]]]"])
def test_several_grids_come_in_the_order_of_the_text(text: str) -> None:
    assert last_grids(text, 2) == [GRID, OTHER]
    assert last_grids("[[1]] " + text, 2) == [GRID, OTHER]
    assert last_grids(text, 1) == [OTHER]


def test_a_ruler_between_two_drawings_keeps_them_apart() -> None:
    assert last_grids("9 9\n9 9\n---\n0 1 2\n3 4 5", 1) == [GRID]


@pytest.mark.parametrize(
    "text",
    [
        *("", "no grid", "[0,1,2]", "[]", "[[]]", "[[10,1]]", "[[-1]]", "[[0.5]]", '[["0"]]', "7", "2024", "[[0,1"),
        "[[0,1,2],\n[3,4,5],\n[6,7,8]",  # broken off
        "[\n[0,1,2],\n[3,4,5],\n[6,",
        "[0,1,x]\n[0,1,2]\n[3,4,5]",
        "[10,1]\n[2,30]",
    ],
)
def test_what_is_no_grid_is_none(text: str) -> None:
    assert last_grids(text, 1) == []


def test_fewer_grids_than_asked_for_are_no_answer() -> None:
    assert last_grids("[[0,1,2],[3,4,5]]", 2) == []


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[" * 1_000_000,
            "[[1]," * 200_000,
            "[[1],[" * 160_000,
            "1 2\n" * 250_000,
            "1 " * 500_000,
            "[[1,2],\n" * 125_000,
        ),
        *("1" + " " * 99_000, "1" + " " * 99_000 + "x", "[1" + " " * 99_000, "1 2" + " |" * 49_000 + "x"),
        *("\n" * 99_000 + "1", "|-" * 49_000 + "x", " " * 49_000 + "1" + " " * 49_000 + "x"),
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_a_megabyte_of_anything_is_read_at_once(text: str) -> None:
    began = time.monotonic()
    last_grids(text, 3)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("run", [" " * 90_000, "\n" * 90_000, " " * 45_000 + "1" + " " * 45_000])
def test_a_grid_beside_a_long_run_is_read_at_once(run: str) -> None:
    began = time.monotonic()
    assert last_grids(f"0 1 2\n3 4 5\n\n{run}x", 1) == [GRID]
    assert last_grids(f"x{run}\n\n0 1 2\n3 4 5", 1) == [GRID]
    assert time.monotonic() - began < 20


def row(text: str, **fields: Any) -> dict[str, Any]:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "[[0,1,2],[3,4,5]]"}]}
    return {
        "responses_create_params": {"input": "?"},
        "response": {"id": "resp", "output": [reasoning, message]},
        "expected_grids": [GRID],
        **fields,
    }


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("[[0,1,2],[3,4,5]]", 1.0),
        ("[[0,1,2],[3,4,6]]", 0.0),
        ("[[0,1,2]]", 0.0),
        ("[[0,1],[3,4]]", 0.0),
        ("[[0,1,2],[3,4,5],[0,0,0]]", 0.0),
        ("[[0,3],[1,4],[2,5]]", 0.0),  # transposed
        ("[[0,1,2],[3,4]]", 0.0),
        ("", 0.0),
        ("<think>[[0,1,2],[3,4,5]]</think> I cannot tell", 0.0),
    ],
)
async def test_only_the_exact_grid_is_right(text: str, reward: float) -> None:
    async with serving(GridAnswer) as server:
        reply = await server.post("/verify", row(text))
    assert (reply.status, reply.json()["reward"]) == (200, reward)


async def test_every_grid_of_several_has_to_be_right() -> None:
    async with serving(GridAnswer) as server:
        both = (await server.post("/verify", row("[[0,1,2],[3,4,5]] [[7],[8]]", expected_grids=[GRID, OTHER]))).json()
        one = (await server.post("/verify", row("[[0,1,2],[3,4,5]] [[7],[9]]", expected_grids=[GRID, OTHER]))).json()
        swapped = (
            await server.post("/verify", row("[[7],[8]] [[0,1,2],[3,4,5]]", expected_grids=[GRID, OTHER]))
        ).json()
        metrics = (await server.post("/aggregate_metrics", {"verify_responses": [both, one, swapped]})).json()
    assert [(reply["reward"], reply["grids_right"]) for reply in (both, one, swapped)] == [(1, 1), (0, 0.5), (0, 0)]
    assert metrics["key_metrics"]["mean/reward"] == pytest.approx(1 / 3)
    assert metrics["key_metrics"]["answered_rate"] == 1.0


@pytest.mark.parametrize("grids", [None, [], [[]], [[[]]], [[[10]]], [[["a"]]]])
async def test_a_row_without_proper_grids_is_refused_by_name(grids: Any) -> None:
    body = row("[[1]]")
    del body["expected_grids"]
    if grids is not None:
        body["expected_grids"] = grids
    async with serving(GridAnswer) as server:
        reply = await server.post("/verify", body)
    assert reply.status == 422
    assert "expected_grids" in reply.json()["error"]["message"]
