"""Instructions that a program can check: the kinds of IFEval and IFBench."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Any

from pydantic import AliasPath, Field

from images.resources_servers.instruction_following import judging
from images.resources_servers.instruction_following.judging import (
    Instruction,
    InstructionError,
    checked_arguments,
    judge,
)
from nemo_gym.servers.base import InvalidRequestError
from nemo_gym.servers.bounded import BoundedCallError, BoundedPool
from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings

# What workers share in memory instead of importing it one by one.
_PRELOAD = (judging.__name__, "emoji", "langdetect_rs", "nltk", "syllapy")


class Row(VerifyRequest):
    """What a row must carry: the kinds of its instructions and, in the same order, the arguments of each."""

    instruction_id_list: list[str] = Field(min_length=1)
    arguments: list[dict[str, Any] | None] = Field(validation_alias=AliasPath("kwargs"))

    def instructions(self) -> list[Instruction]:
        """What ``judge`` takes; an instruction that cannot be checked is a 422 that names it."""
        names, given = self.instruction_id_list, self.arguments
        if len(names) != len(given):
            raise InvalidRequestError.of_field("kwargs", f"needed: one for each of {len(names)}; found {len(given)}")
        checked: list[Instruction] = []
        for number, (name, arguments) in enumerate(zip(names, given, strict=True)):
            try:
                checked.append((name, checked_arguments(name, arguments or {})))
            except InstructionError as error:
                field, *rest = error.path
                path = ".".join(map(str, (field, number, *rest)))
                raise InvalidRequestError.of_field(path, str(error)) from None
        return checked


class InstructionFollowingSettings(ResourcesSettings):
    """How much of the machine judging may take. The README explains each."""

    workers: int | None = Field(default=None, ge=1)
    cpu_s: float = Field(default=30.0, gt=0)
    deadline_s: float = Field(default=300.0, gt=0)
    worker_memory_bytes: int = Field(default=2**30, ge=2**28)


class InstructionFollowing(ResourcesServer):
    """Reward 1.0 when every instruction of the row is followed strictly, else 0.0."""

    settings: InstructionFollowingSettings

    async def running(self) -> AsyncIterator[None]:
        settings = self.settings
        async with BoundedPool(
            workers=settings.workers,
            deadline_s=settings.deadline_s,
            cpu_s=settings.cpu_s,
            memory_bytes=settings.worker_memory_bytes,
            preload=_PRELOAD,
        ) as self._pool:
            async for _ in super().running():
                yield

    async def verify(self, row: Row) -> JsonDict:
        instructions = row.instructions()
        # Chat templates leave line breaks behind a thinking block, and paragraphs are counted from the first one.
        answer = row.text().lstrip("\r\n")
        unjudged = None
        try:
            verdicts = await self._pool.run(judge, answer, instructions)
        except BoundedCallError as error:
            unjudged = str(error)
            verdicts = [(False, False)] * len(instructions)
        followed = [
            {"instruction_id": name, "strict": strict, "loose": loose}
            for (name, _), (strict, loose) in zip(instructions, verdicts, strict=True)
        ]
        return {
            "reward": float(all(strict for strict, _ in verdicts)),
            "loose": float(all(loose for _, loose in verdicts)),
            "followed": followed,
            "unjudged": unjudged,
        }

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        judged = [reply["followed"] for reply in replies if reply.get("followed")]
        if judged:
            accuracies = accuracies_of(judged)
            metrics["agent_metrics"] |= accuracies | {
                "unjudged": sum(reply.get("unjudged") is not None for reply in replies),
                "accuracy_by_instruction": accuracy_by_instruction(judged),
            }
            metrics["key_metrics"] |= accuracies
        return metrics


def accuracies_of(judged: list[list[JsonDict]]) -> dict[str, float]:
    """The four accuracies of IFEval's paper, over the verdicts on each answer.

    ``prompt_level``: the share of answers with every instruction followed. ``instruction_level``: the share of all
    instructions that were.
    """
    accuracies = {}
    for mode in ("strict", "loose"):
        prompts = [[verdict[mode] for verdict in verdicts] for verdicts in judged]
        accuracies[f"prompt_level_{mode}_accuracy"] = _share(map(all, prompts))
        accuracies[f"instruction_level_{mode}_accuracy"] = _share(one for followed in prompts for one in followed)
    return accuracies


def accuracy_by_instruction(judged: list[list[JsonDict]]) -> dict[str, JsonDict]:
    """For each kind of instruction: how often it was asked for, and the shares that followed."""
    by_name: dict[str, list[JsonDict]] = defaultdict(list)
    for verdicts in judged:
        for verdict in verdicts:
            by_name[verdict["instruction_id"]].append(verdict)
    return {
        name: {"count": len(found), **{mode: _share(one[mode] for one in found) for mode in ("strict", "loose")}}
        for name, found in sorted(by_name.items())
    }


def _share(values: Iterable[bool]) -> float:
    counted = list(values)
    return sum(counted) / len(counted)


if __name__ == "__main__":
    raise SystemExit(run_server(InstructionFollowing))
