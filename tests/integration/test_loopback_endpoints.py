"""A model server on this machine's loopback, called from a container through the relay, under load."""

from __future__ import annotations

import asyncio
import threading

from nemo_gym.environment import PlannedBenchmark, TaskRunner, serve_benchmark
from tests.support.scripted_endpoint import ScriptedEndpoint
from tests.support.truthful import always_right

STREAMS = 64
ANSWER_CHARS = 300_000


def test_sixty_four_long_answers_at_once(planned: PlannedBenchmark) -> None:
    """All of the calls are open at the same time: nobody is answered before the last has come."""
    all_here = threading.Barrier(STREAMS)
    right = always_right(planned)

    def think_long(prompt: str) -> str:
        all_here.wait(60)
        return "let me see. " * (ANSWER_CHARS // 12) + "\n" + right(prompt)

    async def run() -> tuple[list[float], list[int]]:
        async with TaskRunner(planned.rows, registry_server=registry_server) as runner:
            result = await runner.run_task(planned.task_ids()[0], num_repeats=STREAMS)
        texts = [reply["response"]["output"][0]["content"][0]["text"] for reply in result.results]
        return result.rewards, [len(text) for text in texts]

    with (
        ScriptedEndpoint(think_long) as endpoint,
        serve_benchmark("truthfulqa_mc1", overrides=endpoint.overrides()) as registry_server,
    ):
        rewards, lengths = asyncio.run(run())
    assert rewards == [1.0] * STREAMS
    assert len(set(lengths)) == 1
    assert lengths[0] > ANSWER_CHARS - 12
