"""A model server that repeats recorded answers, or records those of an endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, Self

import orjson
from aiohttp import web
from pydantic import model_validator

from images.responses_api_models.replay_model.recordings import (
    CHAT_COMPLETIONS,
    MESSAGES,
    RESPONSES,
    NoRecordingError,
    Recording,
    RecordingError,
    Recordings,
    parse_recordings,
    request_digest,
)
from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import READY, InvalidRequestError, Readiness, RequestError, Route, json_response
from nemo_gym.servers.forwarding import Forwarder, ForwardingSettings
from nemo_gym.servers.json_values import dumps
from nemo_gym.servers.logs import current_rollout_id, logger
from nemo_gym.servers.messages import Bootstrap, JsonDict
from nemo_gym.servers.model import ModelServer
from nemo_gym.servers.process import run_server

RECORDINGS = "recordings"
_SHOWN_FIELDS = 8


class ReplaySettings(ForwardingSettings):
    """``record`` needs what ``openai_model`` needs; ``replay`` needs recordings and no endpoint."""

    mode: Literal["replay", "record"] = "replay"
    openai_base_url: str = ""
    openai_model: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode == "record" and not (self.openai_base_url and self.openai_model):
            raise ValueError("mode record needs openai_base_url and openai_model, the endpoint whose answers to record")
        return self


class ReplayModel(ModelServer):
    """Answers what was asked before as it was answered then; what was not is an error, never an empty answer."""

    settings: ReplaySettings

    def __init__(self, bootstrap: Bootstrap) -> None:
        super().__init__(bootstrap)
        self._recordings = Recordings()
        self._recorded: list[bytes] = []
        try:
            self._recordings.add(parse_recordings(bootstrap.files.get(RECORDINGS, "").encode()))
        except RecordingError as error:
            raise ConfigError(f"the {RECORDINGS} of server {self.name} cannot be used: {error}") from None

    def one_worker_because(self) -> str | None:
        return "which answer comes next, and what has been recorded, is known to one process"

    async def running(self) -> AsyncIterator[None]:
        self._forwarder = Forwarder(self.settings) if self.settings.mode == "record" else None
        logger.info("%s, with %d recorded answers", self.settings.mode, len(self._recordings))
        yield
        if self._forwarder is not None:
            await self._forwarder.close()

    async def readiness(self) -> Readiness:
        return READY if self._forwarder is None else await self._forwarder.probe()

    def routes(self) -> list[Route]:
        return [
            *super().routes(),
            Route("GET", "/recordings", self._give_recordings),
            Route("POST", "/recordings", self._take_recordings),
        ]

    async def responses(self, params: JsonDict) -> JsonDict | bytes:
        if self._forwarder is None:
            return self._replay(RESPONSES, params)
        return await self._record(RESPONSES, params, self._forwarder.responses)

    async def chat_completions(self, params: JsonDict) -> JsonDict | bytes:
        if self._forwarder is None:
            return self._replay(CHAT_COMPLETIONS, params)
        return await self._record(CHAT_COMPLETIONS, params, self._forwarder.chat_completions)

    async def messages(self, params: JsonDict) -> JsonDict | bytes:
        if self._forwarder is None:
            with contextlib.suppress(NoRecordingError):
                return self._recordings.find(MESSAGES, params, current_rollout_id.get())
        return await super().messages(params)

    def _replay(self, path: str, params: JsonDict) -> bytes:
        try:
            return self._recordings.find(path, params, current_rollout_id.get())
        except NoRecordingError as error:
            # Not 404: that would say that the route is not there.
            raise RequestError(400, "no_recording", _explained(error), {"request_digest": error.digest}) from None

    async def _record(self, path: str, params: JsonDict, ask: Callable[[JsonDict], Awaitable[JsonDict]]) -> JsonDict:
        request = dumps(params)  # as it arrived: without key, and before anything is added to it
        response = await ask(params)
        record = {
            "request_digest": request_digest(path, params),
            "rollout_id": current_rollout_id.get(),
            "path": path,
            "request": orjson.Fragment(request),
            "response": response,
        }
        self._recorded.append(self.redact.answer(dumps(record)))
        return response

    async def _give_recordings(self, request: web.Request) -> web.StreamResponse:
        if self._forwarder is None:
            raise RequestError(409, "nothing_recorded", f"server {self.name} replays; mode: record is what records")
        lines = b"".join(line + b"\n" for line in self._recorded)
        return web.Response(body=lines, content_type="application/jsonl")

    async def _take_recordings(self, request: web.Request) -> web.StreamResponse:
        try:
            found: list[Recording] = list(parse_recordings(await request.read()))
        except RecordingError as error:
            raise InvalidRequestError([{"loc": [], "msg": str(error), "type": "value_error"}]) from None
        self._recordings.add(found)
        return json_response({"added": len(found), "recordings": len(self._recordings)})


def _explained(error: NoRecordingError) -> str:
    said = f"no answer to this request (digest {error.digest}) has been recorded"
    if not error.recorded:
        return f"{said}, and none to any other: name a file of recordings, policy_recordings=PATH"
    differing = ", ".join(error.nearest[:_SHOWN_FIELDS])
    return (
        f"{said}; the most similar of {error.recorded} recorded requests has another {differing}. Ask what was asked "
        "then, or record again: --model-type replay_model/record"
    )


if __name__ == "__main__":
    raise SystemExit(run_server(ReplayModel))
