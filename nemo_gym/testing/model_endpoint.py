"""A scripted OpenAI-compatible endpoint in a container, on testcontainers' ``DockerContainer``."""

from __future__ import annotations

import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final, NoReturn, Self, cast

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer, Reaper

from nemo_gym.config.sources import install_root
from nemo_gym.containers import images
from nemo_gym.containers.build_context import load_server_context
from nemo_gym.containers.docker_engine import DockerEngine
from nemo_gym.containers.engine_endpoint import find_endpoint, pinned_environ
from nemo_gym.containers.keeper import Keeper
from nemo_gym.containers.labels import ROLE, SERVER, Owner, new_session_id, session_labels
from nemo_gym.containers.preflight import check_before_work
from nemo_gym.containers.pulls import pull_images
from nemo_gym.containers.reaper import remove_session
from nemo_gym.containers.spec import CONTAINER_PORT, MIB, ContainerSpec, HostBinding, Limits
from nemo_gym.errors import ConfigError, NemoGymError, ServerStartError
from nemo_gym.servers.scripted import Asked, Script

KEY_VARIABLE: Final = "NEMO_GYM_ENDPOINT_KEY"
MODEL: Final = "scripted"
READY_TIMEOUT_S: Final = 60.0
_CALL_TIMEOUT_S: Final = 30.0
_NAME: Final = "model_endpoint"
_LIMITS: Final = Limits(memory_bytes=512 * MIB, pids=64)
_DIALLED: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ModelEndpointContainer(DockerContainer):
    """A model whose answers are a script: for a served benchmark, or for any client of such an endpoint.

    ``script`` is a ``Script``, or a text that is the answer to everything. ``bind_address`` is the address of the
    engine's machine that the port is published on, and ``published_host`` what it is reached by: this machine's
    loopback where the engine is local, else every address of the engine's machine. Every request needs ``api_key``,
    which is a new one for each container.

    Its image is built at ``start``, which returns once it answers. What it leaves behind: nothing, also when this
    process dies and Ryuk is switched off. What was set with one of ``DockerContainer``'s ``with_`` methods after
    the start has no effect; the script is changed with ``load``.
    """

    def __init__(
        self, script: Script | str = "", *, bind_address: str | None = None, published_host: str | None = None
    ) -> None:
        self.script = _script_of(script)
        self.api_key = secrets.token_hex(16)
        self._environ = dict(os.environ)
        self._endpoint = find_endpoint(self._environ)
        self._session_id = new_session_id()
        self._keeper: Keeper | None = None
        self._bind_address = bind_address or ("127.0.0.1" if self._endpoint.is_local else "0.0.0.0")
        self._host = published_host or self._dial_host()
        self._check_engine()
        try:
            super().__init__(_NAME)
        finally:
            _restore_docker_host(self._environ)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Build its image where that is missing, start it, wait until it answers, and load the script.

        Raises ``ConfigError``; nothing is left then. With Ryuk switched on, testcontainers starts that first.
        """
        if self._container is not None:
            raise ConfigError("This container has been started already. Make another one for a second endpoint.")
        _ensure_ryuk()
        self.image = self._ensure_image()
        self._keeper = Keeper.start(self._session_id, pinned_environ(self._endpoint, self._environ))
        try:
            super().start()
            self._wait_until_ready()
            self.load(self.script)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Remove the container, whatever state it is in. May be called again."""
        if self._keeper is not None:
            # by label, not by the handle: a start that was interrupted has created a container without one
            with closing(DockerEngine.connect(self._environ)) as engine:
                remove_session(engine, self._session_id)
            self._keeper.release()
            self._keeper = None
        self.get_docker_client().client.close()

    def _configure(self) -> None:
        """What testcontainers creates the container with: our own servers' hardening, in the SDK's words."""
        # testcontainers would publish on all interfaces; a port of (address,) is one that the engine assigns there
        self.ports = cast("dict[str, int | None]", {f"{CONTAINER_PORT}/tcp": (self._bind_address,)})
        self.with_env(KEY_VARIABLE, self.api_key)
        self.tmpfs = {**_host_config()["Tmpfs"], **self.tmpfs}
        self.with_kwargs(**{**hardened_kwargs(self._labels()), **self._kwargs})

    def _labels(self) -> dict[str, str]:
        owner = Owner.current()
        session = session_labels(self._session_id, owner, published_host=self._host, benchmark="(a scripted model)")
        return {**session, SERVER: _NAME, ROLE: "server"}

    def _check_engine(self) -> None:
        """Raise ``ConfigError`` when no engine answers, or testcontainers would use another one."""
        told = testcontainers_config.tc_properties_get_tc_host()
        if told and told != self._endpoint.url:
            raise ConfigError(
                f"testcontainers is to use the engine at {told} (tc.host in ~/.testcontainers.properties), and the one "
                f"found here is at {self._endpoint.url} ({self._endpoint.source}). Set DOCKER_HOST={told}, or remove "
                "that line."
            )
        DockerEngine.connect(self._environ).close()

    def _ensure_image(self) -> str:
        files = images.image_files(install_root(), self._environ)
        folder = install_root() / "images" / "testing" / _NAME
        context = load_server_context(
            folder, "nemo-gym/testing/model-endpoint", files.server_dockerfile, files.ca_bundle
        )
        python_image = images.python_image_of(self._environ)
        with closing(DockerEngine.connect(self._environ)) as engine:
            builds = images.count_missing(engine, files, [context], python_image)
            python = images.find_missing_python(engine, python_image)
            pull_images(engine, check_before_work(engine, [], builds=builds, python=python, environ=self._environ))
            return images.ensure_images(engine, files, [context], python_image=python_image)[0]

    def _wait_until_ready(self) -> None:
        retrying = Retrying(
            retry=retry_if_exception_type((OSError, urllib.error.URLError)),
            wait=wait_fixed(0.02),
            stop=stop_after_delay(READY_TIMEOUT_S),
        )
        try:
            retrying(self._look)
        except RetryError:
            self._fail(f"does not answer at {self.url} after {READY_TIMEOUT_S:.0f} s")

    def _look(self) -> None:
        try:
            self._call("GET", "/health")
        except OSError:
            self.get_wrapped_container().reload()
            if self.get_wrapped_container().status in ("exited", "dead"):
                self._fail("has ended")
            raise

    def _fail(self, how: str) -> NoReturn:
        log = self.get_wrapped_container().logs(tail=20).decode(errors="replace").strip()
        message = f"The scripted model endpoint {how}. The end of its log:\n{log or '(nothing)'}"
        raise ServerStartError(message, server=_NAME, phase="ready", log_tail=log)

    # -- where it is -----------------------------------------------------------------------------------------------

    def get_container_host_ip(self) -> str:
        """Where its port is reached from here. (testcontainers' own guess is wrong inside containers.)"""
        return self._host

    def _get_exposed_port(self, port: int) -> int:
        return self.port

    @property
    def port(self) -> int:
        """The published port."""
        container = self.get_wrapped_container()
        published = container.ports.get(f"{CONTAINER_PORT}/tcp")
        if not published:
            container.reload()
            published = container.ports.get(f"{CONTAINER_PORT}/tcp")
        if not published:
            raise ConnectionError("its port is not published (yet)")
        return int(published[0]["HostPort"])

    @property
    def url(self) -> str:
        """The endpoint, up to ``/v1``: from here, and from containers of served benchmarks."""
        return f"{self._address}/v1"

    @property
    def _address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def overrides(self) -> dict[str, Any]:
        """The config overrides that make it a benchmark's policy model."""
        return {"policy_base_url": self.url, "policy_api_key": self.api_key, "policy_model_name": MODEL}

    def _dial_host(self) -> str:
        if not self._endpoint.is_local:
            return self._endpoint.dial_host
        return _DIALLED.get(self._bind_address, self._bind_address)

    # -- speaking to it --------------------------------------------------------------------------------------------

    def load(self, script: Script | str) -> None:
        """Follow another script from now on; what was asked so far is forgotten."""
        script = _script_of(script)
        self._call("PUT", "/script", script.model_dump_json().encode())
        self.script = script

    def asked(self) -> list[Asked]:
        """The requests since the script was loaded, of which it keeps the latest 1,000."""
        return [Asked.model_validate(one) for one in self._call("GET", "/asked")]

    def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(
            self._address + path, data=body, method=method, headers={"Authorization": f"Bearer {self.api_key}"}
        )
        # no proxy is asked for a container's port
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_CALL_TIMEOUT_S) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise NemoGymError(f"{method} {path} of the scripted model endpoint: HTTP {error.code}: {text}") from None


def hardened_kwargs(labels: Mapping[str, str]) -> dict[str, Any]:
    """What the SDK's ``containers.create`` is told of the hardening that ``ContainerSpec`` has for every server."""
    host = _host_config()
    return {
        # named, or testcontainers looks for a network that this process might be in
        "network": "bridge",
        "labels": dict(labels),
        "init": host["Init"],
        "read_only": host["ReadonlyRootfs"],
        "cap_drop": host["CapDrop"],
        "security_opt": host["SecurityOpt"],
        "pids_limit": host["PidsLimit"],
        "mem_limit": host["Memory"],
        "memswap_limit": host["MemorySwap"],
        "shm_size": host["ShmSize"],
        "log_config": host["LogConfig"],
    }


def _restore_docker_host(environ: Mapping[str, str]) -> None:
    """Take back what testcontainers sets where a docker context names the engine: it would go before every context."""
    if "DOCKER_HOST" not in environ:
        os.environ.pop("DOCKER_HOST", None)


def _ensure_ryuk() -> None:
    """Start testcontainers' own reaper, unless it is switched off."""
    if testcontainers_config.ryuk_disabled:
        return
    try:
        Reaper.get_instance()
    except Exception as error:  # of the SDK, of sockets, of testcontainers
        raise ConfigError(
            f"testcontainers' reaper Ryuk cannot be started from {testcontainers_config.ryuk_image}: {error}. It is "
            "not needed here: set TESTCONTAINERS_RYUK_DISABLED=true, and this container is removed all the same."
        ) from error


def _host_config() -> dict[str, Any]:
    spec = ContainerSpec(_NAME, _NAME, _NAME, ("bridge",), publish=HostBinding(), limits=_LIMITS)
    host_config: dict[str, Any] = spec.to_create_kwargs()["config"]["HostConfig"]
    return host_config


def _script_of(script: Script | str) -> Script:
    if isinstance(script, Script):
        return script
    if isinstance(script, str):
        return Script.answering(script) if script else Script()
    raise ConfigError(f"A script is a Script, or a text that is every answer; found {type(script).__name__}.")
