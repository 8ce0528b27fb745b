"""Generated puzzles: takes the answer from its tags, and asks the generator's own scorer what it is worth."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import Field

from images.resources_servers.reasoning_gym.scoring import SCORERS, UnknownGeneratorError, score
from nemo_gym.servers.base import InvalidRequestError
from nemo_gym.servers.bounded import BoundedCallError, BoundedPool, available_cpus
from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings

LONGEST_ANSWER = 20_000


class Row(VerifyRequest):
    """What a row must carry: who made it, with which parameters, and what it made."""

    question: str
    answer: str | None = None
    """A right answer; None where there are many, and the scorer checks the answer itself."""
    generator: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any]


class ReasoningGymSettings(ResourcesSettings):
    """What scoring one answer may take, in seconds of computing and on the clock, and what it may have."""

    scoring_cpu_s: float = Field(default=10.0, gt=0)
    scoring_deadline_s: float = Field(default=60.0, gt=0)
    worker_memory_mib: int = Field(default=1024, ge=512)
    workers: int | None = Field(default=None, gt=0)


class ReasoningGym(ResourcesServer):
    """The reward is the scorer's, from 0 to 1; many generators give a part of it for what is nearly right."""

    settings: ReasoningGymSettings

    async def running(self) -> AsyncIterator[None]:
        settings = self.settings
        self._pool = BoundedPool(
            workers=settings.workers or min(available_cpus(), 4),
            deadline_s=settings.scoring_deadline_s,
            cpu_s=settings.scoring_cpu_s,
            memory_bytes=settings.worker_memory_mib << 20,
            preload=[SCORERS],
        )
        async with self._pool:
            async for _ in super().running():
                yield

    async def verify(self, row: Row) -> JsonDict:
        answer = find_answer(row.text())
        if answer is None:
            return {"reward": 0.0, "extracted_answer": None, "reason": "no <answer> was found"}
        found: JsonDict = {"extracted_answer": answer[:LONGEST_ANSWER], "reason": None}
        if len(answer) > LONGEST_ANSWER:
            return {**found, "reward": 0.0, "reason": f"the answer has {len(answer)} characters"}
        entry = {"question": row.question, "answer": row.answer, "metadata": row.metadata}
        try:
            reward = await self._pool.run(score, row.generator, row.parameters, entry, answer)
        except BoundedCallError as error:
            # Right answers are scored in milliseconds: it is what the model wrote that takes so long.
            return {**found, "reward": 0.0, "reason": f"the answer cannot be scored: {error}"}
        except UnknownGeneratorError as error:
            raise InvalidRequestError.of_field("generator", str(error)) from None
        return {**found, "reward": reward}

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        if replies:
            answered = sum(reply.get("extracted_answer") is not None for reply in replies) / len(replies)
            solved = sum(reply.get("reward") == 1.0 for reply in replies) / len(replies)
            metrics["agent_metrics"] |= {"answered_rate": answered, "solved_rate": solved}
            metrics["key_metrics"] |= {"answered_rate": answered, "solved_rate": solved}
        return metrics


def find_answer(text: str) -> str | None:
    """What stands in the last ``<answer>`` of a text, without the white space around it; None without one."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end].strip() if start >= 0 else None


if __name__ == "__main__":
    raise SystemExit(run_server(ReasoningGym))
