"""The registry: serves the host view of a session's configuration, and which of its servers live."""

from __future__ import annotations

import orjson
from aiohttp import web

from nemo_gym.servers.base import RequestError, Route, Server, ServerSettings, json_response
from nemo_gym.servers.logs import logger
from nemo_gym.servers.messages import Bootstrap, JsonDict


class Registry(Server):
    """Learns the host view and the deaths of servers from its stdin, which only the session's owner can write."""

    server_type = "registry"
    settings: ServerSettings

    def __init__(self, bootstrap: Bootstrap) -> None:
        super().__init__(bootstrap)
        self._config_json: bytes | None = None
        self._instances: dict[str, JsonDict] = {}
        self._deaths: dict[str, JsonDict] = {}

    def _own_entry(self) -> JsonDict:
        # It is no server of the configuration: without an entry of its own it listens where every image does.
        return super()._own_entry() if self.name in self.bootstrap.config else {}

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/global_config_dict_yaml", self._global_config),
            Route("GET", "/server_instances", self._server_instances),
            Route("GET", "/inside/{name}/{path:(ready)?}", self._ask_inside),
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
        if self._config_json is None:
            names = ", ".join(self.bootstrap.awaited)
            raise RequestError(503, "waiting", f"not every server of this session is ready: {names}", self._waiting())
        return json_response(self._config_json)

    async def _server_instances(self, request: web.Request) -> web.StreamResponse:
        return json_response(list(self._instances.values()))

    async def _ask_inside(self, request: web.Request) -> web.StreamResponse:
        """What a server on the internal network answers: it publishes no port, so its readiness is asked for here."""
        name = request.match_info["name"]
        url = self.bootstrap.inside.get(name)
        if url is None:
            raise RequestError(404, "not_found", f"no server {name!r} stands on this session's internal network alone")
        reply = await self.client.get(name, url, f"/{request.match_info['path']}")
        return web.Response(status=reply.status, body=reply.body, content_type="application/json")
