"""Resources servers: tools, session state, verification and metrics.

A subclass writes ``verify``, and one method per tool::

    class CityArguments(BaseModel):
        city: str

    class Weather(ResourcesServer):
        @tool
        async def get_weather(self, arguments: CityArguments) -> dict[str, Any]:
            return {"forecast": "sunny", "city": arguments.city}

        async def verify(self, row: VerifyRequest) -> dict[str, Any]:
            return {"reward": float("sunny" in row.text())}

The annotation of a method's body parameter is what its requests are checked against. A method that also takes a
``Session`` gets the rollout's own.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeVar

from aiohttp import web
from pydantic import BaseModel

from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import (
    BodyParser,
    Handler,
    InvalidRequestError,
    RequestError,
    Route,
    Server,
    ServerSettings,
    adopt_rollout_id,
    decode,
    json_response,
    parameter_types,
)
from nemo_gym.servers.messages import AggregateRequest, JsonDict, RunRequest, VerifyRequest
from nemo_gym.servers.metrics import aggregate
from nemo_gym.servers.records import note_verdict
from nemo_gym.servers.sessions import Session, SessionExpiredError, SessionStore

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])

_RESERVED = frozenset({"seed_session", "verify", "aggregate_metrics", "reverify_mode", "ready", "ng-rollout"})


def tool(method: Method) -> Method:
    """Serve a method as ``POST /<its name>``: arguments in, whatever it returns out, as JSON."""
    method.__ng_tool__ = True  # type: ignore[attr-defined]
    return method


def tool_names(server_type: type[ResourcesServer]) -> list[str]:
    """The names of the methods that are tools, sorted."""
    names = [name for name in dir(server_type) if getattr(getattr(server_type, name), "__ng_tool__", False)]
    for name in names:
        if name in _RESERVED:
            raise ConfigError(f"a tool cannot be called {name}: that route has a meaning of its own")
    return names


class ResourcesSettings(ServerSettings):
    """Settings of every resources server."""

    session_idle_s: float = 6 * 3600.0


class ResourcesServer(Server):
    """Base of every resources server."""

    server_type = "resources_servers"
    settings: ResourcesSettings
    reverify_mode: ClassVar[str] = "stateless"
    """``stateless`` when ``verify`` needs nothing but its request, ``unsupported`` when it needs the session."""

    verify: Callable[..., Awaitable[JsonDict | BaseModel]]
    """Takes a row with its response; returns what to add to them: ``reward``, and whatever explains it."""

    seed_session: Callable[..., Awaitable[JsonDict | None]]
    """Takes a row and prepares the session for it. Without it nothing is prepared."""

    def session_closed(self, session: Session) -> None:
        """Release what a session's state holds."""

    def aggregate_metrics(self, replies: list[JsonDict]) -> JsonDict:
        """Metrics over replies of ``verify``: ``group_level_metrics``, ``agent_metrics``, ``key_metrics``."""
        return aggregate(replies)

    def routes(self) -> list[Route]:
        if not hasattr(self, "verify"):
            raise ConfigError(f"{type(self).__name__} has no verify method")
        for plain in (self.aggregate_metrics, self.session_closed):
            if inspect.iscoroutinefunction(plain):
                raise ConfigError(f"{plain.__qualname__} is not awaited: write it as `def`")
        seed = _TypedMethod(getattr(self, "seed_session", _seed_nothing), RunRequest)
        verify = _TypedMethod(self.verify, VerifyRequest)
        tools = {name: _TypedMethod(getattr(self, name), JsonDict) for name in tool_names(type(self))}
        methods = {"seed_session": seed, "verify": verify, **tools}
        self._session_users = [name for name, method in methods.items() if method.takes_session]
        self._sessions = SessionStore(
            self.name,
            self.bootstrap.session_secret,
            idle_s=self.settings.session_idle_s,
            on_expiry=self.session_closed,
        )
        return [
            Route("POST", "/seed_session", self._method_route(seed, takes_row=True)),
            Route("POST", "/verify", self._verify_route(verify)),
            Route("POST", "/aggregate_metrics", self._aggregate_route()),
            Route("GET", "/reverify_mode", self._reverify_mode),
            *(Route("POST", f"/{name}", self._method_route(method)) for name, method in tools.items()),
        ]

    def one_worker_because(self) -> str | None:
        if self._session_users:
            takes = "take" if len(self._session_users) > 1 else "takes"
            return f"{', '.join(self._session_users)} {takes} a Session, whose state is in the memory of one process"
        return super().one_worker_because()

    async def running(self) -> AsyncIterator[None]:
        yield
        self._sessions.close()

    def _method_route(self, method: _TypedMethod, *, takes_row: bool = False) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            value = decode(await request.read())
            body = method.parse(value)
            if takes_row:
                adopt_rollout_id(value)
            session = self._session_of(request, begins=takes_row)
            result = await method.call(body, session)
            return self._reply({} if result is None else result, session)

        return handle

    def _verify_route(self, method: _TypedMethod) -> Handler:
        skipped: JsonDict | None = None
        if self.global_flag("skip_verification"):
            reward = self.global_setting("skip_verification_reward", 0.0)
            if isinstance(reward, bool) or not isinstance(reward, (int, float)):
                raise ConfigError(f"skip_verification_reward must be a number; found {reward!r}")
            skipped = {"reward": float(reward), "verification_skipped": True}

        async def handle(request: web.Request) -> web.StreamResponse:
            row = decode(await request.read())
            body = method.parse(row)
            adopt_rollout_id(row)
            session = self._session_of(request)
            result = skipped or await method.call(body, session)
            added = result.model_dump() if isinstance(result, BaseModel) else result
            if not isinstance(added, Mapping):
                raise TypeError(f"{method.name} returned {added!r:.40}; needed: a dict with the reward")
            note_verdict(added)
            return self._reply({**row, **added}, session)

        return handle

    def _aggregate_route(self) -> Handler:
        parse = BodyParser(AggregateRequest)

        async def handle(request: web.Request) -> web.StreamResponse:
            body: AggregateRequest = parse(decode(await request.read()))
            return json_response(self.aggregate_metrics(body.verify_responses))

        return handle

    async def _reverify_mode(self, request: web.Request) -> web.StreamResponse:
        return json_response(self.reverify_mode)

    def _session_of(self, request: web.Request, *, begins: bool = False) -> Session | None:
        if not self._session_users:
            return None
        cookie = request.cookies.get(self._sessions.cookie_name)
        try:
            return self._sessions.get_or_create(cookie, begins=begins)
        except SessionExpiredError:
            idle_s = self.settings.session_idle_s
            message = (
                f"the session of this rollout is gone: it was left alone for more than session_idle_s ({idle_s:g} s)"
            )
            raise RequestError(410, "session_expired", message) from None

    def _reply(self, payload: Any, session: Session | None) -> web.Response:
        response = json_response(payload)
        if session is not None:
            # Every answer carries the cookie: some clients of this protocol keep only those of the last answer.
            response.headers.add("Set-Cookie", self._sessions.cookie_header(session))
        return response


async def _seed_nothing(row: RunRequest) -> None:
    """What a server that keeps no state does at the start of a rollout."""


class _TypedMethod:
    """A method with what its annotations say: the type of its body, and whether it takes a session."""

    def __init__(self, method: Callable[..., Awaitable[Any]], default_body_type: Any) -> None:
        self.name = getattr(method, "__qualname__", "a tool")
        if not inspect.iscoroutinefunction(inspect.unwrap(method)):
            raise ConfigError(f"{self.name} is awaited: write it as `async def`")
        types = parameter_types(method)
        bodies = {name: kind for name, kind in types.items() if kind is not Session}
        if len(bodies) > 1 or len(types) - len(bodies) > 1:
            raise ConfigError(f"{self.name} takes one body and at most one Session; found the parameters {list(types)}")
        self._method = method
        self._body_name = next(iter(bodies), None)
        self._session_name = next((name for name, kind in types.items() if kind is Session), None)
        body_type = next(iter(bodies.values()), Any)
        self.parse = BodyParser(default_body_type if body_type is Any else body_type)

    @property
    def takes_session(self) -> bool:
        return self._session_name is not None

    async def call(self, body: Any, session: Session | None) -> Any:
        arguments: dict[str, Any] = {}
        if self._body_name is not None:
            arguments[self._body_name] = body
        if self._session_name is not None:
            arguments[self._session_name] = session
        return await self._method(**arguments)


__all__ = [
    "InvalidRequestError",
    "RequestError",
    "ResourcesServer",
    "ResourcesSettings",
    "Session",
    "VerifyRequest",
    "tool",
    "tool_names",
]
