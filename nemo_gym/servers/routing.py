"""A server's routes, each also below ``/ng-rollout/<rollout id>``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PREFIX = "/ng-rollout"
_BELOW = _PREFIX + "/{rollout_id}"


def add_routes(
    router: web.UrlDispatcher, routes: Iterable[tuple[str, str, Handler]], *, of_rollouts: Mapping[str, Handler]
) -> None:
    """Serve each route (method, path, handler) at its path and below the prefix; ``of_rollouts`` (GET) only there."""
    table: dict[str, dict[str, Handler]] = {path: {"GET": handler} for path, handler in of_rollouts.items()}
    for method, path, handler in routes:
        router.add_route(method, path, handler)
        if "{" in path:
            router.add_route(method, _BELOW + path, handler)
        else:
            table.setdefault(path, {})[method] = handler

    # aiohttp tries its routes with a variable part one after the other, each with a regular expression, and a server
    # has as many as tools: here it is one for all of them, and a look-up.
    async def below_prefix(request: web.Request) -> web.StreamResponse:
        handlers = table.get(request.match_info["path"])
        if handlers is None:
            raise web.HTTPNotFound
        handler = handlers.get(request.method)
        if handler is None:
            raise web.HTTPMethodNotAllowed(request.method, handlers)
        return await handler(request)

    router.add_route("*", _BELOW + "{path:/.+}", below_prefix)


def path_of(request: web.Request) -> str:
    """A request's path without the rollout's prefix."""
    path = request.path
    return "/" + path.split("/", 3)[3] if path.startswith(f"{_PREFIX}/") else path
