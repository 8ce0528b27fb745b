"""A benchmark's containers as a value to enter: what to serve, and, while entered, where it is served."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from nemo_gym.config.merging import merge
from nemo_gym.config.overrides import checked_overrides
from nemo_gym.errors import ConfigError
from nemo_gym.testing.serving_process import ServingProcess

if TYPE_CHECKING:
    from nemo_gym.config.config_types import BaseServerConfig
    from nemo_gym.deployment.running import RunningServer, RunningSession
    from nemo_gym.environment import PlannedBenchmark, TaskRunner

DEFAULT_MODEL_TYPE: Final = "openai_model"


@dataclass(frozen=True)
class BenchmarkContainers:
    """What to serve. Each ``with_...`` gives another value and leaves this one as it is, started or not.

    Entered, it serves from a process of its own until left, and gives a ``ServedBenchmark``: any number may be entered
    at the same time, in one process and in several. What it leaves behind: nothing, also when this process dies.
    """

    benchmark: str
    model_type: str = DEFAULT_MODEL_TYPE
    overrides: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold keys
    _entered: list[ServingProcess] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("benchmark", "model_type"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"{name} must be a name, as in `gym list`; found {getattr(self, name)!r}.")
        object.__setattr__(self, "overrides", checked_overrides(self.overrides))  # a copy: the caller's may change

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """The request as a text: two that ask for the same have the same one. May hold secrets."""
        return json.dumps([self.benchmark, self.model_type, self.overrides], sort_keys=True)

    def with_model_type(self, model_type: str) -> Self:
        """Another kind of model server, by its folder's name (`gym list models`)."""
        return replace(self, model_type=model_type)

    def with_override(self, key: str, value: Any) -> Self:
        """One key of the config set; dots are paths, as on the command line."""
        steps = key.split(".") if isinstance(key, str) else [""]
        if not all(steps):
            raise ConfigError(f"An override's key is a name, or names with dots between; found {key!r}.")
        for step in reversed(steps):
            value = {step: value}
        return self.with_overrides(value)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Keys of the config set, as a dict nested like the config's; merged over those that are set already."""
        return replace(self, overrides=merge(self.overrides, checked_overrides(overrides)))

    def __enter__(self) -> ServedBenchmark:
        process = ServingProcess(self.benchmark, self.model_type, self.overrides)
        session = process.start()
        self._entered.append(process)
        return ServedBenchmark(self, session)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().stop()


@dataclass(frozen=True)
class ServedBenchmark:
    """A benchmark that is served."""

    containers: BenchmarkContainers
    session: RunningSession

    @property
    def benchmark(self) -> str:
        return self.containers.benchmark

    @property
    def registry_server(self) -> BaseServerConfig:
        """What a ``TaskRunner`` talks to."""
        return self.session.registry_server

    @property
    def session_id(self) -> str:
        """As in ``gym env status``."""
        return self.session.session_id

    @property
    def servers(self) -> Sequence[RunningServer]:
        """Its servers, and where each is reached."""
        return self.session.servers

    @cached_property
    def planned(self) -> PlannedBenchmark:
        """The benchmark as planned with the same overrides; prepares its data at the first use."""
        from nemo_gym.environment import plan_benchmark

        return plan_benchmark(self.benchmark, overrides=self.containers.overrides)

    def task_runner(self) -> TaskRunner:
        """A new runner of its tasks."""
        from nemo_gym.environment import TaskRunner

        return TaskRunner(self.planned.rows, registry_server=self.registry_server)
