"""Mathematics: find the final answer, and compare it with the expected one as a value, not as text.

Sympy can compute for ever on what a model writes, so comparing runs in worker processes with limits of time and memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import Field, field_validator

from images.resources_servers.math_answer.comparison import Expected, is_right
from nemo_gym.servers.bounded import BoundedCallError, BoundedPool, available_cpus
from nemo_gym.servers.final_answers import ALL_FORMS, LONGEST_PLACE, AnswerForm, find_final_answer
from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings


class Row(VerifyRequest):
    """What a row must carry."""

    question: str
    expected_answer: str = Field(min_length=1, max_length=LONGEST_PLACE)
    is_multiple_answer: bool = False
    """Whether the expected answer is a list whose order does not matter: ``1,3,5``."""
    unit: str | None = None
    """The unit of the expected answer: an answer may leave it out, but not give another one."""
    tolerance: float | None = Field(default=None, ge=0)
    """How far a number may be from the expected one; without it, not at all."""

    @field_validator("expected_answer")
    @classmethod
    def _is_not_blank(cls, answer: str) -> str:
        if not answer.strip():
            raise ValueError("it is blank")
        return answer


class MathSettings(ResourcesSettings):
    """How long a comparison may take, in seconds of computing and on the clock, and what it may have."""

    answer_forms: tuple[AnswerForm, ...] = ALL_FORMS
    comparison_cpu_s: float = Field(default=2.0, gt=0)
    comparison_deadline_s: float = Field(default=60.0, gt=0)
    worker_memory_mib: int = Field(default=512, ge=256)
    workers: int | None = Field(default=None, gt=0)


class MathAnswer(ResourcesServer):
    """Reward 1.0 for an answer equal to the expected one, else 0.0."""

    settings: MathSettings

    async def running(self) -> AsyncIterator[None]:
        settings = self.settings
        self._pool = BoundedPool(
            # More of them than this would need more memory than a container has by default.
            workers=settings.workers or min(available_cpus(), 6),
            deadline_s=settings.comparison_deadline_s,
            cpu_s=settings.comparison_cpu_s,
            memory_bytes=settings.worker_memory_mib << 20,
            preload=["math_verify", is_right.__module__],
        )
        async with self._pool:
            async for _ in super().running():
                yield

    async def verify(self, row: Row) -> JsonDict:
        forms = self.settings.answer_forms
        if row.response.get("status") == "incomplete":
            # The last number of a text that was cut off is where it was cut off.
            forms = tuple(form for form in forms if form != "last")
        answer, form = find_final_answer(row.text(), several=row.is_multiple_answer, forms=forms)
        found: JsonDict = {"extracted_answer": answer, "answer_form": form, "reason": None}
        if answer is None:
            return {**found, "reward": 0.0, "reason": "no answer was found"}
        if len(answer) > LONGEST_PLACE:
            return {**found, "reward": 0.0, "reason": f"the answer has {len(answer)} characters"}
        expected = Expected(row.expected_answer, row.is_multiple_answer, row.unit, row.tolerance)
        try:
            right = await self._pool.run(is_right, answer, expected)
        except BoundedCallError as error:
            # What a model wrote is to blame, not this server: the expected answers compare in milliseconds.
            return {**found, "reward": 0.0, "reason": f"the answer cannot be compared: {error}"}
        return {**found, "reward": float(right)}

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        if replies:
            answered = [reply for reply in replies if reply.get("extracted_answer") is not None]
            unreadable = sum(bool(reply.get("reason")) for reply in answered)
            metrics["key_metrics"]["answered_rate"] = len(answered) / len(replies)
            metrics["agent_metrics"] |= {
                "answered_rate": len(answered) / len(replies),
                "incomparable_rate": unreadable / len(replies),
            }
        return metrics


if __name__ == "__main__":
    raise SystemExit(run_server(MathAnswer))
