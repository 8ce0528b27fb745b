"""Answers judged by a language model: what it is asked, and how its verdict is read, stands in the settings."""

from __future__ import annotations

from nemo_gym.servers.base import Route
from nemo_gym.servers.judge import Judge, JudgedSettings, judge_metrics
from nemo_gym.servers.messages import JsonDict, RunRequest, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer


class LlmJudge(ResourcesServer):
    """The reward is what the judge's verdict is worth; without a verdict the rollout has failed."""

    settings: JudgedSettings

    def routes(self) -> list[Route]:
        self._judge = Judge(self, self.settings.judge_model_server, self.settings.judge)
        return super().routes()

    async def seed_session(self, row: RunRequest) -> None:
        # A row that cannot be judged is refused before the model spends tokens on it.
        self._judge.check(row)

    async def verify(self, row: VerifyRequest) -> JsonDict:
        return await self._judge.verify(row)

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        metrics = super().aggregate_metrics(replies)
        figures = judge_metrics(replies)
        metrics["agent_metrics"] |= figures
        if "judge_agreement_rate" in figures:
            metrics["key_metrics"]["judge_agreement_rate"] = figures["judge_agreement_rate"]
        return metrics


if __name__ == "__main__":
    raise SystemExit(run_server(LlmJudge))
