"""The registry: serves the host view of a session's configuration, and which of its servers live."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from aiohttp import web

from nemo_gym.servers.base import RequestError, Route, Server, ServerSettings, json_response
from nemo_gym.servers.client import DownstreamError
from nemo_gym.servers.logs import current_rollout_id, logger
from nemo_gym.servers.messages import Bootstrap, JsonDict

SERVER_PORT: Final = 8000  # of every server, in its container
RECORDS_TIMEOUT_S: Final = 5.0
_CLOSE_TO: Final = 500  # so many of the latest ids are searched for one that was meant
_HAS_NONE: Final = ("no_records", "observability_off")


class Registry(Server):
    """Learns the host view and the deaths of servers from its stdin, which only the session's owner can write.

    Who asks for the config by the name that the registry has on the session's network is a server on it, and gets the
    addresses there.
    """

    server_type = "registry"
    settings: ServerSettings

    def __init__(self, bootstrap: Bootstrap) -> None:
        super().__init__(bootstrap)
        self._config_json: bytes | None = None
        self._instances: dict[str, JsonDict] = {}
        self._deaths: dict[str, JsonDict] = {}
        # what the session's own network sees is known before any server is ready
        self._inside_json = orjson.dumps(bootstrap.config.get("inside_view"))

    def _own_entry(self) -> JsonDict:
        # It is no server of the configuration: without an entry of its own it listens where every image does.
        return super()._own_entry() if self.name in self.bootstrap.config else {}

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/global_config_dict_yaml", self._global_config),
            Route("GET", "/server_instances", self._server_instances),
            Route("GET", "/inside/{name}/{path:(ready|reverify_mode)?}", self._ask_inside),
            Route("POST", "/inside/{name}/{path:(verify|aggregate_metrics)}", self._ask_inside),
        ]

    def on_input(self, line: bytes) -> None:
        """Take one JSON line of the session's owner; what cannot be read is logged and left."""
        try:
            message = orjson.loads(line)
            kind = message.get("type")
            if kind == "host_view":
                self._take_host_view(message)
            elif kind == "server_died":
                self._take_death(message)
            else:
                logger.warning("a line of type %r on stdin is not known", kind)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            logger.error("a line of %d bytes on stdin cannot be used: %s", len(line), type(error).__name__)

    def _take_host_view(self, message: JsonDict) -> None:
        instances = {str(instance["name"]): dict(instance) for instance in message["server_instances"]}
        self._config_json = orjson.dumps(str(message["config_yaml"]))
        self._instances = instances
        for name, death in self._deaths.items():
            self._mark_dead(name, death)
        logger.info("the host view has arrived: %d servers", len(instances))

    def _take_death(self, message: JsonDict) -> None:
        name = str(message["name"])
        death = {key: message.get(key) for key in ("exit_code", "oom_killed", "detail")}
        self._deaths[name] = death
        self._mark_dead(name, death)
        logger.warning("server %s has died", name, extra={"exit_code": death["exit_code"]})

    def _mark_dead(self, name: str, death: JsonDict) -> None:
        self._instances.setdefault(name, {"name": name}).update(status="dead", **death)

    def _waiting(self) -> JsonDict:
        return {"status": "waiting", "awaited": list(self.bootstrap.awaited)}

    async def _ready(self, request: web.Request) -> web.Response:
        if self._config_json is None:
            return json_response(self._waiting(), status=503)
        return json_response({"status": "ready", "server": self.name})

    async def _global_config(self, request: web.Request) -> web.StreamResponse:
        if request.host == f"{self.name}:{self.settings.port}":
            return json_response(self._inside_json)
        if self._config_json is None:
            names = ", ".join(self.bootstrap.awaited)
            raise RequestError(503, "waiting", f"not every server of this session is ready: {names}", self._waiting())
        return json_response(self._config_json)

    async def _server_instances(self, request: web.Request) -> web.StreamResponse:
        return json_response(list(self._instances.values()))

    async def _ask_inside(self, request: web.Request) -> web.StreamResponse:
        """What a server on the internal network answers, which publishes no port.

        Its readiness is asked for here; and its verdicts, by whoever serves it without an agent.
        """
        name, path = request.match_info["name"], f"/{request.match_info['path']}"
        url = self.bootstrap.inside.get(name)
        if url is None:
            raise RequestError(404, "not_found", f"no server {name!r} stands on this session's internal network alone")
        if request.method == "POST":
            reply = await self.client.post(name, url, path, await request.read())
        else:
            reply = await self.client.get(name, url, path)
        return web.Response(status=reply.status, body=reply.body, content_type="application/json")

    # -- records -----------------------------------------------------------------------------------------

    async def _rollout_records(self, request: web.Request) -> web.StreamResponse:
        """What every server of the session has recorded of a rollout, in the order of the times."""
        rollout_id = request.match_info["rollout_id"]
        current_rollout_id.set(None)  # whoever asks for a rollout's records is no part of it
        answers, unasked, reasons = await self._ask_all(f"/ng-rollout/{rollout_id}/records")
        records = [record for answer in answers for record in answer["records"]]
        if not records:
            await self._refuse(rollout_id, unasked, reasons)
        records.sort(key=lambda record: str(record["time"]))
        return json_response({"rollout_id": rollout_id, "records": records, "unasked": unasked})

    async def _recorded_rollouts(self, request: web.Request) -> web.StreamResponse:
        """The rollouts that any server has records of, the latest first."""
        latest, unasked, reasons = await self._latest_rollouts()
        if not latest:
            await self._refuse(None, unasked, reasons)
        rollouts = [{"rollout_id": rollout_id, "time": time} for rollout_id, time in latest.items()]
        return json_response({"rollouts": rollouts, "unasked": unasked})

    async def _latest_rollouts(self) -> tuple[dict[str, str], dict[str, str], set[str]]:
        answers, unasked, reasons = await self._ask_all("/ng-rollout")
        latest: dict[str, str] = {}
        for entry in (entry for answer in answers for entry in answer["rollouts"]):
            rollout_id, time = str(entry["rollout_id"]), str(entry["time"])
            latest[rollout_id] = max(time, latest.get(rollout_id, ""))
        return dict(sorted(latest.items(), key=lambda item: item[1], reverse=True)), unasked, reasons

    async def _refuse(self, rollout_id: str | None, unasked: Mapping[str, str], reasons: set[str]) -> None:
        """Say why there is nothing to show, and which rollout may have been meant."""
        details: JsonDict = {"unasked": unasked}
        if "observability_off" in reasons:
            message = "nothing is recorded: these servers were started without observability_enabled=true"
            raise RequestError(404, "observability_off", message, details)
        if unasked and len(unasked) == len(self.bootstrap.awaited):
            said = "; ".join(f"{name}: {why}" for name, why in unasked.items())
            raise RequestError(502, "nobody_answers", f"no server has given records: {said}", details)
        if rollout_id is None:
            raise RequestError(404, "no_records", "no rollout has been recorded yet", details)
        known = list((await self._latest_rollouts())[0])
        near = _near(rollout_id, known)
        hint = f"; did you mean {', '.join(near)}?" if near else f"; {len(known)} others are known"
        raise RequestError(404, "no_records", f"nothing is known of rollout {rollout_id}{hint}", details)

    async def _ask_all(self, path: str) -> tuple[list[JsonDict], dict[str, str], set[str]]:
        """GET from every server at once: the answers, why others gave none, and the reasons of those that have none."""
        names = self.bootstrap.awaited
        said = await asyncio.gather(*(self._ask(name, path) for name in names))
        answers: list[JsonDict] = []
        unasked: dict[str, str] = {}
        reasons: set[str] = set()
        for name, answer in zip(names, said, strict=True):
            if isinstance(answer, dict):
                answers.append(answer)
            elif answer in _HAS_NONE:
                reasons.add(answer)
            else:
                unasked[name] = answer
        return answers, unasked, reasons

    async def _ask(self, name: str, path: str) -> JsonDict | str:
        """A server's answer; else its error type when that is one of ``_HAS_NONE``; else why there is no answer."""
        if name in self._deaths:
            return "it has died"
        url = self.bootstrap.inside.get(name) or f"http://{name}:{SERVER_PORT}"
        try:
            async with asyncio.timeout(RECORDS_TIMEOUT_S):
                reply = await self.client.get(name, url, path)
        except TimeoutError:
            return f"it did not answer within {RECORDS_TIMEOUT_S:g} s"
        except DownstreamError as error:
            return error.body_tail
        value = _object_in(reply.body)
        if reply.ok and isinstance(value.get("records", value.get("rollouts")), list):
            return value
        kind = (value.get("error") or {}).get("type") if isinstance(value.get("error"), dict) else None
        return kind if kind in _HAS_NONE else f"it keeps no records (HTTP {reply.status})"


def _object_in(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _near(rollout_id: str, known: Iterable[str]) -> list[str]:
    """The ids that ``rollout_id`` may stand for: those of its repeats, those it is a repeat of, those like it."""
    ids = list(known)
    kin = [other for other in ids if other.startswith(rollout_id) or rollout_id.startswith(other)]
    return (kin or difflib.get_close_matches(rollout_id, ids[:_CLOSE_TO]))[:3]
