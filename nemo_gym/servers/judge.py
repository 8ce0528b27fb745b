"""A language model as the judge of answers, for resources servers.

::

    class Essays(ResourcesServer):
        settings: JudgedSettings

        def routes(self) -> list[Route]:
            self._judge = Judge(self, self.settings.judge_model_server, self.settings.judge)
            return super().routes()

        async def verify(self, row: VerifyRequest) -> dict[str, Any]:
            return await self._judge.verify(row)

The judge is asked through a model server of its own. What that server cannot get from its endpoint, it has asked for
often enough already; what cannot be read as a verdict is asked for again here. Where there is no verdict in the end,
the rollout has failed: the reply then carries the protocol's failure markers, and no reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.servers.base import InvalidRequestError, RequestError, Server
from nemo_gym.servers.client import DownstreamError, Reply
from nemo_gym.servers.judge_prompts import (
    FENCE,
    FIRST,
    RESPONSE,
    SECOND,
    FieldError,
    JudgeTemplate,
    fence_for,
    field_text,
    messages_of,
    shortened,
)
from nemo_gym.servers.judge_verdicts import LONGEST_READ, NoVerdictError, Verdict, VerdictFormat
from nemo_gym.servers.logs import logger
from nemo_gym.servers.messages import JsonDict, RunRequest, ServerRef, VerifyRequest, output_text, summed_usage
from nemo_gym.servers.resources import ResourcesSettings

UNAVAILABLE = "judge_unavailable"
NO_VERDICT = "judge_no_verdict"
DISAGREEMENT = "judge_disagreement"

_PATH = "/v1/responses"
_OWN_PARAMS = ("input", "instructions", "stream", "tools", "previous_response_id", "conversation", "prompt")
_ANSWERS_THAT_PASS = frozenset({408, 409, 425, 429})
_SAID_CHARS = 300


class SwapSettings(BaseModel):
    """Compare the answer with the row's ``reference`` in both orders, since judges favour a place.

    The prompt then names ``{first}`` and ``{second}``, and the rewards, all from 0 to 1, are those of the first; a
    reward r in the other order is worth 1 - r. ``combine: agree`` takes the reward on which both orders agree, and
    ``disagreement_reward`` where they do not (null: the rollout has failed); ``average`` takes the mean.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reference: str
    combine: Literal["agree", "average"] = "agree"
    disagreement_reward: float | None = Field(default=0.5, ge=0, le=1)


class JudgeSettings(BaseModel):
    """What the judge is asked, and how its answer is read. Lengths are in characters.

    ``user`` and ``system`` name fields of the row, ``{response}`` (the model's answer, without its reasoning) and
    ``{fence}`` (a line that stands in no answer). ``params`` go into the request as they are; null leaves one out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    system: str | None = None
    params: dict[str, Any] = Field(default_factory=lambda: {"temperature": 0.0, "max_output_tokens": 1024})
    verdict: VerdictFormat
    swap: SwapSettings | None = None
    max_answer_chars: int = Field(default=32_000, ge=2)
    attempts: int = Field(default=2, ge=1, le=20)
    retry_note: str = "The last reply to this held no verdict. Give it in exactly the form that is asked for."
    retry_temperature: float | None = Field(default=None, ge=0)
    timeout_s: float | None = Field(default=None, gt=0)
    empty_answer_reward: float | None = 0.0

    @field_validator("user", "system")
    @classmethod
    def _is_a_template(cls, text: str | None) -> str | None:
        if text is not None:
            JudgeTemplate(text)
        return text

    @field_validator("params")
    @classmethod
    def _leaves_the_question_alone(cls, params: dict[str, Any]) -> dict[str, Any]:
        own = [name for name in _OWN_PARAMS if name in params]
        if own:
            raise ValueError(f"{', '.join(own)}: set by the judge itself, from its prompt")
        return params

    @model_validator(mode="after")
    def _prompt_shows_what_is_judged(self) -> Self:
        named = self.fields()
        shown = (RESPONSE,) if self.swap is None else (FIRST, SECOND)
        missing = [f"{{{name}}}" for name in shown if name not in named]
        if missing:
            raise ValueError(f"the prompt does not show what is to be judged: it lacks {' and '.join(missing)}")
        if self.swap is not None:
            if RESPONSE in named:
                raise ValueError("with swap the answer is {first} or {second}; found {response} in the prompt")
            if self.verdict.rewards and not all(0 <= reward <= 1 for reward in self.verdict.rewards.values()):
                raise ValueError("with swap every reward lies from 0 to 1, as r is worth 1 - r in the other order")
        return self

    def fields(self) -> list[str]:
        """What the prompt names, each once."""
        texts = [text for text in (self.system, self.user) if text is not None]
        return list(dict.fromkeys(name for text in texts for name in JudgeTemplate(text).fields))


class JudgedSettings(ResourcesSettings):
    """Settings of a resources server that asks a judge."""

    judge_model_server: ServerRef
    judge: JudgeSettings

    @field_validator("judge_model_server")
    @classmethod
    def _is_a_model(cls, ref: ServerRef) -> ServerRef:
        if ref.type != "responses_api_models":
            raise ValueError(f"needed: a reference to one of responses_api_models; found one to {ref.type}")
        return ref


class JudgeFailure(RequestError):
    """There is no verdict. ``terminal``: there would be none for any other answer, or at any other time, either.

    Where a server lets it pass, its caller gets a 502; ``reply`` is what a ``/verify`` answers with instead.
    """

    def __init__(self, failure_class: str, message: str, *, terminal: bool = False) -> None:
        super().__init__(502, failure_class, message)
        self.failure_class = failure_class
        self.terminal = terminal
        self.calls: list[JsonDict] = []

    def reply(self) -> JsonDict:
        """What is added to the row: no reward, what the judge said, and the protocol's markers."""
        markers: JsonDict = {"_ng_failure_class": self.failure_class, "_ng_failure_judge_error": str(self)}
        if self.terminal:
            markers["_ng_failure_terminal"] = True
        return {**_figures(self.calls), **markers}


@dataclass(frozen=True)
class Ruling:
    """A reward, and how the judge came to it: ``verdicts`` one per order, ``calls`` one per request."""

    reward: float
    verdicts: list[str | float]
    calls: list[JsonDict]
    left_out_chars: int = 0
    agrees: bool | None = None

    def reply(self) -> JsonDict:
        """What ``/verify`` adds to the row."""
        reply: JsonDict = {"reward": self.reward, "judge_verdicts": self.verdicts, **_figures(self.calls)}
        if self.agrees is not None:
            reply["judge_agrees"] = self.agrees
        if self.left_out_chars:
            reply["judge_answer_chars_left_out"] = self.left_out_chars
        return reply


@dataclass
class _Order:
    """One question to the judge, and what came of it."""

    texts: Mapping[str, str]
    swapped: bool = False
    calls: list[JsonDict] = field(default_factory=list)


class Judge:
    """Asks one model server, on behalf of ``server``. Keeps nothing between calls."""

    def __init__(self, server: Server, model: ServerRef, settings: JudgeSettings) -> None:
        self._server = server
        self._model = model
        self._url = server.url_of(model)
        self._settings = settings
        self._user = JudgeTemplate(settings.user)
        self._system = None if settings.system is None else JudgeTemplate(settings.system)
        reserved = {RESPONSE, FENCE} if settings.swap is None else {FIRST, SECOND, FENCE}
        self._row_fields = [name for name in settings.fields() if name not in reserved]

    def check(self, row: RunRequest) -> None:
        """Raise a 422 that names the field when the row lacks what the judge is to be told."""
        self._row_texts(dict(row))

    async def verify(self, row: VerifyRequest) -> JsonDict:
        """What a ``/verify`` adds to the row: a reward and its reasons, or failure markers and theirs.

        An answer without any visible text is worth ``empty_answer_reward`` and is not judged, unless that is null.
        """
        answer, unjudged = row.text(), self._settings.empty_answer_reward
        if unjudged is not None and not answer.strip():
            self.check(row)
            return {"reward": unjudged, "judge_skipped": "empty_answer", **_figures([])}
        try:
            return (await self.rule(dict(row), answer)).reply()
        except JudgeFailure as failure:
            logger.warning("no verdict: %s", failure)
            return failure.reply()

    async def rule(self, row: Mapping[str, Any], answer: str) -> Ruling:
        """The judge's ruling on ``answer``. Raises ``JudgeFailure``, and a 422 for a row that lacks a field.

        A judge model server that cannot be reached at all is a ``DownstreamError``, which names it.
        """
        texts, limit, swap = self._row_texts(row), self._settings.max_answer_chars, self._settings.swap
        shown, left_out = shortened(answer, limit)
        if swap is None:
            orders = [_Order({**texts, RESPONSE: shown, FENCE: fence_for(shown)})]
        else:
            other = texts[swap.reference]
            fenced = {**texts, FENCE: fence_for(shown, other)}
            orders = [
                _Order({**fenced, FIRST: shown, SECOND: other}),
                _Order({**fenced, FIRST: other, SECOND: shown}, swapped=True),
            ]
        outcomes = await asyncio.gather(*map(self._decide, orders), return_exceptions=True)
        calls = [call for order in orders for call in order.calls]
        verdicts: list[Verdict] = []
        for outcome in outcomes:
            if isinstance(outcome, JudgeFailure):
                outcome.calls = calls
            if isinstance(outcome, BaseException):
                raise outcome
            verdicts.append(outcome)
        reward, agrees = self._combined(verdicts, calls)
        return Ruling(reward, [verdict.given for verdict in verdicts], calls, left_out, agrees)

    def _row_texts(self, row: Mapping[str, Any]) -> dict[str, str]:
        swap = self._settings.swap
        wanted = [*self._row_fields, *([swap.reference] if swap else [])]
        texts: dict[str, str] = {}
        problems = []
        for name in dict.fromkeys(wanted):
            try:
                texts[name] = field_text(row, name)
            except FieldError as error:
                problems.append({"loc": name.split("."), "msg": str(error), "type": "value_error"})
        if problems:
            raise InvalidRequestError(problems)
        return texts

    def _combined(self, verdicts: Sequence[Verdict], calls: list[JsonDict]) -> tuple[float, bool | None]:
        swap = self._settings.swap
        if swap is None:
            return verdicts[0].reward, None
        one, other = verdicts[0].reward, 1.0 - verdicts[1].reward
        agrees = abs(one - other) < 1e-9
        if agrees or swap.combine == "average":
            return (one + other) / 2, agrees
        if swap.disagreement_reward is None:
            said = " and ".join(repr(verdict.given) for verdict in verdicts)
            failure = JudgeFailure(DISAGREEMENT, f"the judge contradicts itself when the order is swapped: {said}")
            failure.calls = calls
            raise failure
        return swap.disagreement_reward, False

    async def _decide(self, order: _Order) -> Verdict:
        """The verdict on one question; asked again while what comes back cannot be read."""
        problem = said = ""
        for attempt in range(1, self._settings.attempts + 1):
            response = await self._ask(self._request(order.texts, attempt))
            text = output_text(response)
            call: JsonDict = {"attempt": attempt, "text": text[-LONGEST_READ:], "model": response.get("model")}
            if order.swapped:
                call["swapped"] = True
            if isinstance(response.get("usage"), Mapping):
                call["usage"] = response["usage"]
            order.calls.append(call)
            try:
                verdict = self._read(response, text)
            except NoVerdictError as error:
                problem, said = str(error), text
                call["problem"] = problem
                continue
            call["verdict"] = verdict.given
            return verdict
        times = f" in {self._settings.attempts} attempts" if self._settings.attempts > 1 else ""
        quoted = f"; the end of what it said: {said[-_SAID_CHARS:]!r}" if said.strip() else ""
        raise JudgeFailure(NO_VERDICT, f"server {self._model.name} gave no verdict{times}: {problem}{quoted}")

    def _request(self, texts: Mapping[str, str], attempt: int) -> bytes:
        params = {name: value for name, value in self._settings.params.items() if value is not None}
        user = self._user.fill(texts)
        if attempt > 1:
            user = f"{user}\n\n{self._settings.retry_note}"
            if self._settings.retry_temperature is not None:
                params["temperature"] = self._settings.retry_temperature
        system = None if self._system is None else self._system.fill(texts)
        return orjson.dumps({"input": messages_of(system, user), **params})

    def _read(self, response: Mapping[str, Any], text: str) -> Verdict:
        if response.get("status") == "incomplete":
            # What comes last counts, and that is what is missing.
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else None
            raise NoVerdictError(f"it was cut off ({reason or 'no reason given'})")
        if not text.strip() and any(item.get("type") == "reasoning" for item in response["output"]):
            raise NoVerdictError("it said nothing beside its reasoning")
        return self._settings.verdict.read(text)

    async def _ask(self, request: bytes) -> JsonDict:
        """The judge's response; what the model server answers instead is a ``JudgeFailure``."""
        name, patience_s = self._model.name, self._settings.timeout_s
        try:
            async with asyncio.timeout(patience_s):
                reply = await self._server.client.post(name, self._url, _PATH, request)
        except TimeoutError:
            raise JudgeFailure(UNAVAILABLE, f"server {name} did not answer within {patience_s:g} s") from None
        if not reply.ok:
            terminal = 400 <= reply.status < 500 and reply.status not in _ANSWERS_THAT_PASS
            said = f"server {name} answered HTTP {reply.status}: {reply.error_message()}"
            raise JudgeFailure(UNAVAILABLE, said, terminal=terminal)
        return self._response_in(reply)

    def _response_in(self, reply: Reply) -> JsonDict:
        try:
            response = reply.json_object()
        except DownstreamError as error:
            raise JudgeFailure(UNAVAILABLE, str(error)) from None
        output = response.get("output")
        if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
            raise JudgeFailure(UNAVAILABLE, f"server {self._model.name} answered without a list of output items")
        return response


def _figures(calls: Iterable[JsonDict]) -> JsonDict:
    """What the judge's work came to: how often it was asked, its tokens, and every one of its answers."""
    made = list(calls)
    usage: JsonDict | None = None
    for call in made:
        usage = summed_usage(usage, call.get("usage"))
    tokens = {f"judge_{key}": (usage or {}).get(key) or 0 for key in ("input_tokens", "output_tokens")}
    return {"judge_attempts": len(made), **tokens, "judge_calls": made}


def judge_metrics(replies: Sequence[JsonDict]) -> JsonDict:
    """Over replies of ``Judge.verify``: how many were judged, asked again, cut, and agreed on; verdicts by count."""
    judged = [reply for reply in replies if reply.get("judge_verdicts")]
    if not replies:
        return {}
    verdicts: dict[str, int] = {}
    for reply in judged:
        shown = " / ".join(str(verdict) for verdict in reply["judge_verdicts"])
        verdicts[shown] = verdicts.get(shown, 0) + 1
    metrics: JsonDict = {
        "judged": len(judged),
        "judge_skipped": sum(bool(reply.get("judge_skipped")) for reply in replies),
        "judge_parse_retries": sum(reply["judge_attempts"] - len(reply["judge_verdicts"]) for reply in judged),
        "judge_answers_cut": sum(bool(reply.get("judge_answer_chars_left_out")) for reply in replies),
        "judge_verdicts": dict(sorted(verdicts.items())),
    }
    swapped = [reply["judge_agrees"] for reply in judged if "judge_agrees" in reply]
    if swapped:
        metrics["judge_agreement_rate"] = sum(swapped) / len(swapped)
    return metrics
