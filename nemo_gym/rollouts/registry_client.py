"""What a registry knows, read over HTTP: the host view of the config, and which servers live."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.rows import AGENT_SERVER_TYPE

if TYPE_CHECKING:
    import aiohttp

REGISTRY_NAME: Final = "registry"
SERVER_TYPES: Final = (
    "responses_api_models",
    AGENT_SERVER_TYPE,
    "resources_servers",
    "environment_servers",
)
_NO_SUCH_ROUTE: Final = (404, 405, 501)
_EVERY_ADDRESS: Final = ("0.0.0.0", "::", "[::]")


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Where a registry answers, and the token it asks for, if any."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return base_url(self.host, self.port)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass(frozen=True, slots=True)
class DeadServer:
    """A server that the registry says has died."""

    name: str
    exit_code: int | None = None
    oom_killed: bool = False
    detail: str = ""

    def describe(self) -> str:
        """How it died, as the end of a sentence that begins with its name."""
        cause = "was killed because its memory limit was reached" if self.oom_killed else "died"
        code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        detail = self.detail.strip()
        if not detail:
            return f"{cause}{code}."
        return f"{cause}{code}: {detail}" if detail.endswith((".", "!", "?")) else f"{cause}{code}: {detail}."


@dataclass(frozen=True, slots=True)
class HostView:
    """Each agent's URL as dialled from here, the servers that a server needs in order to work, the config served."""

    agent_urls: Mapping[str, str]
    needs: Mapping[str, frozenset[str]]
    config: Mapping[str, Any] = field(default_factory=dict)

    def needed_by(self, name: str) -> frozenset[str]:
        """``name`` and every server it calls, directly or through others."""
        found = {name}
        pending = [name]
        while pending:
            for needed in self.needs.get(pending.pop(), frozenset()) - found:
                found.add(needed)
                pending.append(needed)
        return frozenset(found)


class RegistryNotReadyError(Exception):
    """The registry does not answer, or still waits for its servers."""


class RegistryClient:
    """Reads one registry through a session of the caller's."""

    def __init__(self, session: aiohttp.ClientSession, address: RegistryAddress) -> None:
        self._session = session
        self._address = address

    async def load_host_view(self) -> HostView:
        """The host view, or ``RegistryNotReadyError`` when the registry is absent or still waiting.

        A registry without ``/ready`` (404, say) is ready as soon as it serves its config.
        """
        status, body = await self.get("/ready")
        if status in (401, 403):
            raise ConfigError(self.describe_refusal(status))
        if status not in (200, *_NO_SUCH_ROUTE):
            raise RegistryNotReadyError(_waiting_sentence(status, body))
        status, body = await self.get("/global_config_dict_yaml")
        if status != 200:
            raise RegistryNotReadyError(_waiting_sentence(status, body))
        return parse_host_view(body, self._address.url)

    async def load_dead_servers(self) -> list[DeadServer] | None:
        """The servers that have died; None when this registry keeps no such list."""
        status, body = await self.get("/server_instances")
        if status in _NO_SUCH_ROUTE:
            return None
        return parse_dead_servers(body) if status == 200 else []

    @property
    def url(self) -> str:
        return self._address.url

    def describe_refusal(self, status: int) -> str:
        """What to do about an answer 401 or 403."""
        wrong = "it refuses the token that was sent" if self._address.token else "it asks for a token"
        return (
            f"The registry at {self.url} answered HTTP {status}: {wrong}. Set NEMO_GYM_TOKEN here to its value where "
            "the servers were started, or give it as BaseServerConfig(..., token=...)."
        )

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of the answer; ``RegistryNotReadyError`` when there is none."""
        import aiohttp

        url = self._address.url + path
        try:
            async with self._session.get(url, headers=self._address.headers, allow_redirects=False) as answer:
                return answer.status, await answer.read()
        except TimeoutError as error:
            raise RegistryNotReadyError("it accepted the connection and did not answer in time") from error
        except (aiohttp.ClientConnectorError, ConnectionRefusedError) as error:
            raise RegistryNotReadyError(f"no connection ({_cause(error)})") from error
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"The registry's address {url!r} is not a URL: check its host.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise RegistryNotReadyError(f"the connection broke ({_cause(error)})") from error


def base_url(host: str, port: int) -> str:
    """The URL of a server, with an IPv6 literal in brackets."""
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"


def parse_host_view(body: bytes, registry_url: str) -> HostView:
    """Agents and dependencies from ``/global_config_dict_yaml``'s answer: a JSON string that holds YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = json.loads(body)
        config = yaml.load(text, Loader=loader) if isinstance(text, str) else text
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"The server at {registry_url} does not serve a config (a JSON string with YAML inside) at "
            f"/global_config_dict_yaml: {error}. Is it a registry?"
        ) from error
    if not isinstance(config, Mapping):
        raise ConfigError(f"The config served at {registry_url} holds no servers: found {config!r:.80}.")
    agent_urls: dict[str, str] = {}
    needs: dict[str, frozenset[str]] = {}
    for name, server_type, settings in _servers(config):
        needs[name] = frozenset(_referenced_names(settings))
        url = _url_of(settings, registry_url) if server_type == AGENT_SERVER_TYPE else None
        if url is not None:
            agent_urls[name] = url
    return HostView(agent_urls, needs, config)


def _url_of(settings: Mapping[str, Any], registry_url: str) -> str | None:
    """Where a server is dialled; None when it has no address.

    A registry written elsewhere may say where a server listens rather than where it is reached: one that listens on
    every address of a machine is taken to be on the registry's.
    """
    host, port = settings.get("host"), settings.get("port")
    if isinstance(port, str) and port.isdecimal():
        port = int(port)
    if not isinstance(host, str) or not host or not isinstance(port, int) or isinstance(port, bool):
        return None
    return base_url(urlsplit(registry_url).hostname or host if host in _EVERY_ADDRESS else host, port)


def parse_dead_servers(body: bytes) -> list[DeadServer] | None:
    """The entries of ``/server_instances`` whose status is ``dead``; None when the answer is no such list."""
    try:
        instances = json.loads(body)
    except ValueError:
        return None
    if not isinstance(instances, list):
        return None
    return [
        DeadServer(
            name=str(instance.get("name")),
            exit_code=instance.get("exit_code"),
            oom_killed=bool(instance.get("oom_killed")),
            detail=str(instance.get("detail") or ""),
        )
        for instance in instances
        if isinstance(instance, dict) and instance.get("status") == "dead"
    ]


def _servers(config: Mapping[Any, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for name, entry in config.items():
        if not isinstance(entry, Mapping):
            continue
        for server_type in SERVER_TYPES:
            implementations = entry.get(server_type)
            if not isinstance(implementations, Mapping):
                continue
            for settings in implementations.values():
                if isinstance(settings, Mapping):
                    yield str(name), server_type, settings


def _referenced_names(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        if node.get("type") in SERVER_TYPES and isinstance(node.get("name"), str):
            yield node["name"]
        for value in node.values():
            yield from _referenced_names(value)
    elif isinstance(node, list):
        for value in node:
            yield from _referenced_names(value)


def _waiting_sentence(status: int, body: bytes) -> str:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    awaited = answer.get("awaited") if isinstance(answer, dict) else None
    if isinstance(awaited, list) and awaited:
        return f"it still waits for {', '.join(map(str, awaited))}"
    return f"it answered HTTP {status}"


def _cause(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or error
    return str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
