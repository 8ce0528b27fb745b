"""Code: find the program in an answer, and run its function against the row's tests, each in a process of its own.

What models write is run as if it were meant to do harm; see the README for what holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from pydantic import Field

from images.resources_servers.code_execution.confinement import hide_from_others
from images.resources_servers.code_execution.judging import PASSED, Problem, RowFaultError, Verdict, confinement, judge
from images.resources_servers.code_execution.sandbox import Limits, SandboxError
from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import InvalidRequestError
from nemo_gym.servers.bounded import BoundedPool, CallDiedError, CallLateError, available_cpus
from nemo_gym.servers.logs import logger
from nemo_gym.servers.messages import JsonDict, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings

_TESTS_CPU_S = 10.0
_START_S = 90.0


class Row(VerifyRequest):
    """What a row must carry."""

    entry_point: str
    """The name of the function that is tested."""
    test: str
    """Python that defines ``check(candidate)``, which calls the function and asserts what it returns."""
    prompt: str = ""
    """Python that stands before the function: imports, helpers, and the function's signature if it is begun."""


class CodeSettings(ResourcesSettings):
    """What a program may take, in seconds of computing and on the clock, and how many run at a time."""

    program_cpu_s: int = Field(default=5, ge=1)
    program_deadline_s: float = Field(default=20.0, gt=0)
    program_memory_mib: int = Field(default=512, ge=64)
    workers: int | None = Field(default=None, gt=0)
    require_seccomp: bool = True


class CodeExecution(ResourcesServer):
    """Reward 1.0 for a program that passes all tests, else 0.0."""

    settings: CodeSettings

    async def running(self) -> AsyncIterator[None]:
        settings = self.settings
        # Programs run as the same user: this process has the session's secrets.
        hide_from_others()
        self._limits = Limits(
            cpu_s=settings.program_cpu_s,
            deadline_s=settings.program_deadline_s,
            memory_bytes=settings.program_memory_mib << 20,
        )
        self._pool = BoundedPool(
            # More of them than this would need more memory than a container has by default.
            workers=settings.workers or min(available_cpus(), 4),
            deadline_s=settings.program_deadline_s + _START_S,
            cpu_s=_TESTS_CPU_S,
            memory_bytes=max(512, settings.program_memory_mib) << 20,
            preload=[judge.__module__],
        )
        async with self._pool:
            await self._check_confinement()
            async for _ in super().running():
                yield

    async def verify(self, row: Row) -> JsonDict:
        problem = Problem(row.prompt, row.entry_point, row.test)
        try:
            verdict = await self._pool.run(judge, row.text(), problem, self._limits)
        except RowFaultError as fault:
            raise InvalidRequestError.of_field(fault.field, fault.message) from None
        except CallLateError:
            # A test computes for milliseconds, unless it is given something vast to compare.
            verdict = Verdict("timeout")
        except CallDiedError as error:
            # Where memory is short, programs go first: what ends the process of the tests is what they were given.
            logger.warning("the process that runs tests died: %s", error)
            verdict = Verdict("crashed")
        return {
            "reward": float(verdict.reason == PASSED),
            "reason": verdict.reason,
            "extracted_code": verdict.code,
        }

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        if replies:
            reasons = Counter(str(reply.get("reason")) for reply in replies)
            metrics["key_metrics"]["pass_rate"] = reasons[PASSED] / len(replies)
            metrics["agent_metrics"]["pass_rate"] = reasons[PASSED] / len(replies)
            metrics["agent_metrics"] |= {f"reason/{reason}": count for reason, count in sorted(reasons.items())}
        return metrics

    async def _check_confinement(self) -> None:
        try:
            in_force = await self._pool.run(confinement, self._limits)
        except SandboxError as error:
            raise ConfigError(f"programs cannot be run here: {error}") from error
        if "seccomp" in in_force:
            logger.info("programs run under %s", " and ".join(in_force))
            return
        if self.settings.require_seccomp:
            raise ConfigError(
                "needed: seccomp, which keeps programs from signalling this server and from starting processes; found: "
                "a kernel or machine without it. To run programs all the same: require_seccomp: false in this server's "
                "config"
            )
        logger.warning("programs run without seccomp: one that means harm can end this server")


if __name__ == "__main__":
    raise SystemExit(run_server(CodeExecution))
