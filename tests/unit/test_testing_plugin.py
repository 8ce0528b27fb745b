"""The pytest plugin in small projects of its own, on containers that only say that they serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nemo_gym.testing
from nemo_gym.errors import ConfigError
from nemo_gym.testing import plugin

pytest_plugins = ["pytester"]

CONFTEST = """
from types import SimpleNamespace
import pytest
from nemo_gym.testing import BenchmarkContainers

class Process:
    def stop(self):
        print("stopped")

def enter(self):
    if self.benchmark == "broken":
        from nemo_gym.errors import ConfigError
        raise ConfigError("No engine answers.")
    with open("served", "a") as log:
        log.write(f"{self.benchmark} {self.model_type} {self.overrides}\\n")
    self._entered.append(Process())
    return SimpleNamespace(benchmark=self.benchmark, task_runner=lambda: f"runner of {self.benchmark}")

BenchmarkContainers.__enter__ = enter
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeconftest(CONFTEST)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "nemo_gym.testing.plugin", "--strict-markers", "-W", "error", *options)


def test_tests_that_ask_for_the_same_share_it(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.served_benchmark("one")
        def test_first(served_benchmark, task_runner):
            assert (served_benchmark.benchmark, task_runner) == ("one", "runner of one")

        @pytest.mark.served_benchmark("two", model_type="replay_model", overrides={"a": {"b": 1}})
        class TestOther:
            def test_second(self, served_benchmark):
                assert served_benchmark.benchmark == "two"

            @pytest.mark.served_benchmark("one")
            def test_third(self, served_benchmark):
                assert served_benchmark.benchmark == "one"
        """
    )
    run(project).assert_outcomes(passed=3)
    served = (project.path / "served").read_text()
    assert served == "one openai_model {}\ntwo replay_model {'a': {'b': 1}}\n"


def test_overrides_for_all_come_from_a_fixture_and_below_the_marker(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def benchmark_overrides():
            return {"a": {"b": 0, "c": 2}}

        @pytest.mark.served_benchmark("one", overrides={"a": {"b": 1}})
        def test_first(served_benchmark): ...
        """
    )
    run(project).assert_outcomes(passed=1)
    assert (project.path / "served").read_text() == "one openai_model {'a': {'b': 1, 'c': 2}}\n"


def test_how_many_at_once_is_an_ini_option(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nbenchmarks_at_once = 1\n")
    marked = '@pytest.mark.served_benchmark("{}")\ndef test_{}(served_benchmark): ...\n'
    project.makepyfile("import pytest\n" + "".join(marked.format(n, i) for i, n in enumerate(["a", "b", "a"])))
    run(project).assert_outcomes(passed=3)
    assert [line.split()[0] for line in (project.path / "served").read_text().splitlines()] == ["a", "b", "a"]


def test_a_failed_start_is_one_sentence_and_tried_once(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.served_benchmark("broken")
        def test_first(served_benchmark): ...
        def test_second(served_benchmark): ...
        """
    )
    result = run(project)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["No engine answers."])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*nemo_gym/testing*")


@pytest.mark.parametrize("value", ["0", "two", "-1"])
def test_another_number_at_once_is_refused(project: pytest.Pytester, value: str) -> None:
    project.makeini(f"[pytest]\nbenchmarks_at_once = {value}\n")
    project.makepyfile('import pytest\n@pytest.mark.served_benchmark("a")\ndef test_it(served_benchmark): ...\n')
    result = run(project)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*benchmarks_at_once must be a whole number from 1 on; found '{value}'*"])


def test_a_fixture_of_any_scope_can_be_made_of_it(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from nemo_gym.testing import BenchmarkContainers

        @pytest.fixture(scope="session", params=["one", "two"])
        def served(request, shared_benchmarks):
            with shared_benchmarks.served(BenchmarkContainers(request.param)) as served:
                yield served

        def test_first(served):
            assert served.benchmark in ("one", "two")

        @pytest.mark.served_benchmark("two")
        def test_both(served, served_benchmark): ...
        """
    )
    run(project).assert_outcomes(passed=4)
    assert len((project.path / "served").read_text().splitlines()) == 2


class TestMarker:
    @pytest.mark.parametrize(
        ("mark", "said"),
        [
            (None, "needs to know which benchmark. Mark the test @pytest.mark.served_benchmark"),
            (pytest.mark.served_benchmark, r"found: @pytest.mark.served_benchmark\(\)\."),
            (pytest.mark.served_benchmark("a", "b"), r"found: @pytest.mark.served_benchmark\('a', 'b'\)\."),
            (pytest.mark.served_benchmark("a", name="b"), r"found: @pytest.mark.served_benchmark\('a', name='b'\)\."),
            (pytest.mark.served_benchmark("a", model="m"), r"found: @pytest.mark.served_benchmark\('a', model='m'\)\."),
            (pytest.mark.served_benchmark(3), "benchmark must be a name"),
            (pytest.mark.served_benchmark("a", overrides={"a.b": 1}), r"a\.b"),
        ],
    )
    def test_one_that_says_something_else_is_refused(self, mark: Any, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            plugin.parse_marker(mark and mark.mark, {})

    def test_its_name_may_be_named(self) -> None:
        assert plugin.parse_marker(pytest.mark.served_benchmark(name="a/b").mark, {}).benchmark == "a/b"


IMPORTED = """
import json, sys, threading
import pytest
before = set(sys.modules)
import nemo_gym.testing.plugin
print(json.dumps([sorted({name.split(".")[0] for name in set(sys.modules) - before}), threading.active_count()]))
"""


def test_importing_the_plugin_imports_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["nemo_gym"], 1]


def test_the_names_there_are() -> None:
    assert dir(nemo_gym.testing) == sorted(nemo_gym.testing.__all__)
    for name in nemo_gym.testing.__all__:
        assert getattr(nemo_gym.testing, name).__name__ == name
    with pytest.raises(AttributeError, match=r"'nemo_gym\.testing' has no attribute 'nothing'"):
        nemo_gym.testing.nothing  # noqa: B018


def test_without_testcontainers_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers", None)
    for name in ("testcontainers.core", "testcontainers.core.container", "nemo_gym.testing.model_endpoint"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(vars(nemo_gym.testing), "ModelEndpointContainer", raising=False)
    with pytest.raises(ImportError, match=r"Type: pip install 'nemo-gym\[testing\]'"):
        nemo_gym.testing.ModelEndpointContainer  # noqa: B018
