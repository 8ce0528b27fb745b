"""The pytest plugin: served benchmarks as fixtures.

::

    @pytest.mark.served_benchmark("gsm8k", overrides={"policy_model_name": "my-model"})
    def test_first_task(served_benchmark, task_runner):
        result = asyncio.run(task_runner.run_task(served_benchmark.planned.task_ids()[0]))

pytest imports this module in every run of every project of the environment: it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from nemo_gym.environment import TaskRunner
    from nemo_gym.testing.benchmark_containers import BenchmarkContainers, ServedBenchmark
    from nemo_gym.testing.sharing import SharedBenchmarks

_T = TypeVar("_T")
_AT_ONCE = "benchmarks_at_once"
# Not `benchmark`: that marker is pytest-benchmark's, which refuses these arguments.
_MARKER = "served_benchmark"
_MARKER_LINE = (
    f"{_MARKER}(name, model_type='openai_model', overrides=None): the benchmark that the fixtures served_benchmark and "
    "task_runner of nemo_gym.testing serve, NAME or NAME/FLAVOR"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_AT_ONCE, "nemo_gym.testing: how many benchmarks each test process serves at a time", default="2")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER_LINE)


@pytest.fixture(scope="session")
def shared_benchmarks(pytestconfig: pytest.Config) -> Iterator[SharedBenchmarks]:
    """The benchmarks that this test process serves: for fixtures of one's own, of any scope.

    ::

        @pytest.fixture(scope="session")
        def gsm8k(shared_benchmarks):
            with shared_benchmarks.served(BenchmarkContainers("gsm8k")) as served:
                yield served
    """
    from nemo_gym.testing.sharing import SharedBenchmarks

    shared = SharedBenchmarks(_read_at_once(pytestconfig.getini(_AT_ONCE)))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def benchmark_overrides() -> Mapping[str, Any]:
    """Overrides for every served benchmark, below those of its marker. For redefinition: the model's address, say."""
    return {}


@pytest.fixture
def served_benchmark(request: pytest.FixtureRequest) -> Iterator[ServedBenchmark]:
    """The benchmark that the test's marker asks for. Tests of one process that ask for the same share it."""
    marker = request.node.get_closest_marker(_MARKER)
    overrides = request.getfixturevalue("benchmark_overrides")
    shared = request.getfixturevalue("shared_benchmarks")
    containers = _explained(lambda: parse_marker(marker, overrides))
    serving = shared.served(containers)
    yield _explained(serving.__enter__)
    serving.__exit__(None, None, None)


@pytest.fixture
def task_runner(served_benchmark: ServedBenchmark) -> TaskRunner:
    """A runner of the tasks of ``served_benchmark``."""
    return _explained(served_benchmark.task_runner)


def parse_marker(marker: pytest.Mark | None, overrides: Mapping[str, Any]) -> BenchmarkContainers:
    """What a test's marker asks for, over ``overrides``. Raises ``ConfigError``."""
    from nemo_gym.errors import ConfigError
    from nemo_gym.testing.benchmark_containers import BenchmarkContainers

    needed = '@pytest.mark.served_benchmark("NAME", model_type="openai_model", overrides={...})'
    if marker is None:
        raise ConfigError(f"The fixture served_benchmark needs to know which benchmark. Mark the test {needed}.")
    unknown = sorted(marker.kwargs.keys() - {"name", "model_type", "overrides"})
    if unknown or len(marker.args) + ("name" in marker.kwargs) != 1:
        found = ", ".join([*map(repr, marker.args), *(f"{key}={value!r}" for key, value in marker.kwargs.items())])
        raise ConfigError(f"Needed: {needed}; found: @pytest.mark.served_benchmark({found}).")
    name = marker.args[0] if marker.args else marker.kwargs["name"]
    containers = (
        BenchmarkContainers(name).with_overrides(overrides).with_overrides(marker.kwargs.get("overrides") or {})
    )
    model_type = marker.kwargs.get("model_type")
    return containers if model_type is None else containers.with_model_type(model_type)


def _read_at_once(text: str) -> int:
    from nemo_gym.errors import ConfigError

    if not text.isdecimal() or int(text) < 1:
        raise pytest.UsageError(str(ConfigError(f"{_AT_ONCE} must be a whole number from 1 on; found {text!r}.")))
    return int(text)


def _explained(call: Callable[[], _T]) -> _T:
    """What the call returns; what the user can correct ends the test as a sentence instead of a traceback."""
    from nemo_gym.errors import NemoGymError

    try:
        return call()
    except NemoGymError as error:
        message = str(error)
    pytest.fail(message, pytrace=False)
