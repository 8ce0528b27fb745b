"""What every server shares: settings, routes, typed bodies, errors as JSON, identity and readiness."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_type_hints

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.servers.client import DownstreamError, ServerClient
from nemo_gym.servers.json_values import dumps, loads
from nemo_gym.servers.logs import Redactor, current_rollout_id, log_request, logger, secrets_in
from nemo_gym.servers.messages import (
    Bootstrap,
    JsonDict,
    ServerRef,
    error_body,
    is_rollout_id,
    problems_of,
    settings_error,
    validation_error_body,
)
from nemo_gym.servers.records import OBSERVABILITY, Exchange, RolloutRecords, kind_of
from nemo_gym.servers.routing import Handler as Handler
from nemo_gym.servers.routing import add_routes, path_of

JSON_HEADERS = {"Content-Type": "application/json"}


class ServerSettings(BaseModel):
    """Settings that every server has. A subclass adds its own; keys that no class names are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    host: str = "0.0.0.0"
    port: int = 8000
    num_workers: int | None = Field(default=None, ge=1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    shutdown_grace_s: float = 4.0
    max_body_bytes: int = 2**30
    records_budget_mb: int = Field(default=64, ge=1)
    record_body_kb: int = Field(default=256, ge=0)


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler


@dataclass(frozen=True)
class Readiness:
    """Whether a server can do its work. ``failed`` means that waiting is pointless."""

    status: str = "ready"
    key: str | None = None
    address: str | None = None
    detail: str | None = None


READY = Readiness()


class RequestError(Exception):
    """A request that this server refuses; its caller gets ``status`` and a JSON body that says why."""

    def __init__(self, status: int, kind: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(kind, message, details)


class InvalidRequestError(RequestError):
    """A request body that is not what the route needs: 422, naming each field."""

    def __init__(self, problems: Sequence[Any]) -> None:
        super().__init__(422, "invalid_request", "invalid request")
        self.body = validation_error_body(problems)

    @classmethod
    def of_field(cls, field: str, message: str) -> InvalidRequestError:
        """A problem that was found outside of the body's type."""
        return cls([{"loc": field.split("."), "msg": message, "type": "value_error"}])


class Server:
    """One server process. Subclasses annotate ``settings`` with their settings class and add ``routes``."""

    server_type: ClassVar[str] = ""
    settings: ServerSettings

    def __init__(self, bootstrap: Bootstrap) -> None:
        self.bootstrap = bootstrap
        self.name = bootstrap.server_name
        settings_type = cast("type[ServerSettings]", get_type_hints(type(self))["settings"])
        entry = self._own_entry()
        try:
            self.settings = settings_type.model_validate(entry)
        except ValidationError as error:
            raise settings_error(self.name, error) from None
        self.redact = Redactor(secrets_in(bootstrap.config) | {bootstrap.session_secret, bootstrap.token or ""})
        self.records = self._open_records()
        self._client: ServerClient | None = None
        self.worker, self.worker_count = 0, self.settings.num_workers or 1
        self.missing_workers: Callable[[], int] = lambda: 0

    # -- what subclasses override ------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        """The routes that are also served under ``/ng-rollout/{rollout_id}``."""
        return []

    async def readiness(self) -> Readiness:
        """Whether work sent now can succeed."""
        return READY

    def one_worker_because(self) -> str | None:
        """Why this server cannot be several processes (``num_workers``) that know nothing of one another."""
        if type(self).on_input is not Server.on_input:
            return "it is told on its standard input what happens, and only one process can read that"
        return None

    async def running(self) -> AsyncIterator[None]:
        """Acquire what the server holds while it runs, yield once, release it."""
        yield

    def on_input(self, line: bytes) -> None:
        """A further line on stdin, after the bootstrap line. Most servers get none."""

    # -- what subclasses use -----------------------------------------------------------------------------

    def global_setting(self, key: str, default: Any = None) -> Any:
        """A reserved top-level key of the configuration."""
        value = self.bootstrap.config.get(key)
        return default if value is None else value

    def global_flag(self, key: str) -> bool:
        """A reserved top-level key that is true or false; false when it is not there."""
        value = self.global_setting(key, False)
        if not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false; found {value!r}")
        return value

    @property
    def client(self) -> ServerClient:
        """Calls other servers of this session; made at first use, closed with the server."""
        if self._client is None:
            self._client = ServerClient(token=self.bootstrap.token)
        return self._client

    def url_of(self, ref: ServerRef) -> str:
        """The address of a server that this one's settings refer to."""
        entries = (self.bootstrap.config.get(ref.name) or {}).get(ref.type) or {}
        for entry in entries.values():
            if entry.get("host") and entry.get("port"):
                return f"http://{entry['host']}:{entry['port']}"
        raise ConfigError(f"server {self.name} refers to {ref.type}/{ref.name}, and was given no address of it")

    # -- the application ---------------------------------------------------------------------------------

    def build_app(self) -> web.Application:
        """The aiohttp application: own routes, identity, readiness, JSON errors."""
        app = web.Application(middlewares=[self._guard], client_max_size=self.settings.max_body_bytes)
        app[SERVER] = self
        app.cleanup_ctx.append(self._running)
        app.router.add_get("/", self._identity)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/ng-rollout", self._recorded_rollouts)
        add_routes(app.router, self.routes(), of_rollouts={"/records": self._rollout_records})
        reason = self.one_worker_because()
        if reason is not None and self.worker_count > 1:
            count = self.worker_count
            raise ConfigError(
                f"server {self.name} has num_workers: {count}; needed: 1, or none given, because {reason}"
            )
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        async for _ in self.running():
            yield
        if self._client is not None:
            await self._client.close()

    async def _identity(self, request: web.Request) -> web.Response:
        identity = {"status": "ok", "server": self.name, "session_id": self.bootstrap.session_id}
        return json_response(identity)

    async def _ready(self, request: web.Request) -> web.Response:
        state = await self.readiness()
        missing = self.missing_workers()
        if state.status == "ready" and missing:
            state = Readiness("waiting", detail=f"{missing} of {self.worker_count} workers have not started yet")
        if state.status == "ready":
            return json_response({"status": "ready", "server": self.name})
        reply = {"status": state.status, "key": state.key, "address": state.address, "detail": state.detail}
        return json_response(self.redact(orjson.dumps(reply).decode()).encode(), status=503)

    def _own_entry(self) -> JsonDict:
        declared = self.bootstrap.config.get(self.name) or {}
        entries = declared.get(self.server_type) or {}
        if len(entries) != 1:
            raise ConfigError(
                f"needed: the settings of server {self.name} under {self.name}.{self.server_type}.<implementation>; "
                f"found: {sorted(declared) or 'nothing'}"
            )
        return cast(JsonDict, next(iter(entries.values())) or {})

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note the rollout, check the token, and turn whatever goes wrong into JSON."""
        started = time.monotonic()
        asked: bytes | None = None
        rollout_id = request.match_info.get("rollout_id")
        current_rollout_id.set(rollout_id)
        try:
            if rollout_id is not None and not is_rollout_id(rollout_id):
                raise InvalidRequestError.of_field("rollout_id", f"{rollout_id!r} is no rollout id")
            if self.bootstrap.token is not None:
                self._check_token(request, self.bootstrap.token)
            if self.records is not None:
                asked = await self.records.begin(request)
            response = await handler(request)
        except asyncio.CancelledError:
            self._note(request, asked, None, time.monotonic() - started)
            raise
        except Exception as error:
            response = self._error_response(request, error)
        self._note(request, asked, response, time.monotonic() - started)
        return response

    def _note(
        self, request: web.Request, asked: bytes | None, response: web.StreamResponse | None, elapsed_s: float
    ) -> None:
        """Tell what a rollout asked of this server, to whoever follows it by its id."""
        rollout_id = current_rollout_id.get()
        if rollout_id is None:
            return
        path, status = path_of(request), None if response is None else response.status
        if status is not None:
            log_request(request.method, path, status, elapsed_s)
        if self.records is not None and asked is not None:
            answer = response.body if isinstance(response, web.Response) else None
            kind = kind_of(self.server_type, path)
            answered = answer if isinstance(answer, bytes) else None
            exchange = Exchange(kind, request.method, path, status, elapsed_s, asked, answered)
            self.records.add(rollout_id, exchange)

    def _open_records(self) -> RolloutRecords | None:
        if not self.global_flag(OBSERVABILITY):
            return None
        return RolloutRecords(
            Path(tempfile.gettempdir(), "nemo-gym-records", self.bootstrap.session_id, self.name),
            server=self.name,
            redact=self.redact,
            budget_bytes=self.settings.records_budget_mb * 2**20,
            body_bytes=self.settings.record_body_kb * 2**10,
        )

    async def _rollout_records(self, request: web.Request) -> web.StreamResponse:
        rollout_id = request.match_info["rollout_id"]
        current_rollout_id.set(None)  # whoever asks for a rollout's records is no part of it
        records = await asyncio.to_thread(self._recording().read, rollout_id)
        if not records:
            message = f"server {self.name} has no records of rollout {rollout_id}: it never came here, or was long ago"
            raise RequestError(404, "no_records", message)
        return json_response({"rollout_id": rollout_id, "server": self.name, "records": records})

    async def _recorded_rollouts(self, request: web.Request) -> web.StreamResponse:
        rollouts = await asyncio.to_thread(self._recording().rollouts)
        return json_response({"server": self.name, "rollouts": rollouts})

    def _recording(self) -> RolloutRecords:
        if self.records is None:
            message = f"nothing is recorded: these servers were started without {OBSERVABILITY}=true"
            raise RequestError(404, "observability_off", message)
        return self.records

    def _check_token(self, request: web.Request, token: str) -> None:
        sent = request.headers.get("Authorization", "")
        if not hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()):
            raise RequestError(401, "unauthorized", "this session's servers want its token as a bearer token")

    def _error_response(self, request: web.Request, error: Exception) -> web.Response:
        headers = dict(JSON_HEADERS)
        if isinstance(error, RequestError):
            status, body = error.status, error.body
        elif isinstance(error, DownstreamError):
            status, body = error.reply_status, error.reply_body()
        elif isinstance(error, web.HTTPException):
            status, body = error.status, _http_error_body(request, error)
            headers.update({k: v for k, v in error.headers.items() if k in ("Allow", "Location")})
        else:
            logger.error("%s failed", request.path, exc_info=error)
            status, body = 500, error_body(type(error).__name__, str(error) or type(error).__name__)
        if status >= 500 and (isinstance(error, (RequestError, DownstreamError))):
            logger.warning("%s answers %d: %s", request.path, status, error)
        return web.Response(body=self.redact(body.decode()).encode(), status=status, headers=headers)


SERVER = web.AppKey("server", Server)


def json_response(payload: Any, *, status: int = 200) -> web.Response:
    """A JSON response; ``bytes`` are taken to be JSON already."""
    return web.Response(body=encode(payload), status=status, headers=JSON_HEADERS)


def encode(payload: Any) -> bytes:
    """JSON bytes of what a handler returned."""
    if isinstance(payload, bytes):
        return payload
    return dumps(payload, default=_encode_default, option=orjson.OPT_NON_STR_KEYS)


def _encode_default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def decode(body: bytes) -> Any:
    """The JSON value of a request body; junk is a 422 that says where."""
    try:
        return loads(body)
    except orjson.JSONDecodeError as error:
        if not body:
            raise InvalidRequestError([{"loc": [], "msg": "the body is empty", "type": "json_invalid"}]) from None
        problem = f"the body is no JSON: {error.msg} at character {error.pos}"
        raise InvalidRequestError([{"loc": [], "msg": problem, "type": "json_invalid"}]) from None


class BodyParser:
    """Checks decoded bodies against a type."""

    def __init__(self, body_type: Any) -> None:
        adapter: TypeAdapter[Any] = TypeAdapter(body_type)
        self._validate = adapter.validator.validate_python

    def __call__(self, value: Any) -> Any:
        try:
            return self._validate(value)
        except ValidationError as error:
            raise InvalidRequestError(problems_of(error)) from None


def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotated parameters of a bound method, in order."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        name = getattr(function, "__qualname__", "a method")
        raise ConfigError(f"the annotations of {name} need names of its module's top level: {error}") from None
    return {name: hints.get(name, Any) for name in inspect.signature(function).parameters}


def adopt_rollout_id(row: Mapping[str, Any]) -> None:
    """Note the rollout that a row names, for a caller that does not use the path's prefix."""
    if current_rollout_id.get() is None:
        named = row.get("_ng_rollout_id")
        current_rollout_id.set(named if isinstance(named, str) and is_rollout_id(named) else None)


def _http_error_body(request: web.Request, error: web.HTTPException) -> bytes:
    if error.status == 404:
        return error_body("not_found", f"no route {request.method} {request.path}")
    if error.status == 405:
        return error_body("method_not_allowed", f"{request.path} does not take {request.method}")
    return error_body(type(error).__name__, error.text or error.reason)
