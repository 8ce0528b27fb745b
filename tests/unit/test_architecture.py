"""The floors of the package hold: imports run downwards only, modules stay small, importing has no side effect."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nemo_gym.config
import nemo_gym.environment
import nemo_gym.errors

ROOT = Path(__file__).parents[2]

# What each part may import of the package, beside itself.
MAY_IMPORT = {
    "__init__": set[str](),
    "errors": set[str](),
    "secret_keys": set[str](),
    "config": {"errors", "secret_keys"},
    "containers": {"errors"},
    "servers": {"errors", "secret_keys"},
    "eval": {"errors", "config"},
    "rollouts": {"errors", "servers"},
    "deployment": {"errors", "config", "containers"},
    "environment": {"errors", "config", "containers", "servers", "eval", "rollouts", "deployment"},
    "cli": {"errors", "config", "containers", "servers", "eval", "rollouts", "deployment", "environment"},
    "testing": {"errors", "config", "containers", "servers", "eval", "rollouts", "deployment", "environment"},
    "__main__": {"cli"},
    "images": {"errors", "servers"},
    "benchmarks": {"errors", "config", "eval", "environment"},
}
SDK_USERS = {
    "nemo_gym/containers/docker_engine.py",
    "nemo_gym/containers/docker_errors.py",
    "nemo_gym/containers/docker_images.py",
    "nemo_gym/containers/docker_pulls.py",
    "nemo_gym/containers/docker_streams.py",
    "nemo_gym/containers/engine_endpoint.py",
}
MOST_LINES = 400
LIGHT = ["nemo_gym.environment", "nemo_gym.config", "nemo_gym.containers", "nemo_gym.testing"]

# each module's text, by its path below the root
MODULES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for part in ("nemo_gym", "images", "benchmarks", "scripts")
    for path in sorted((ROOT / part).rglob("*.py"))
    if not {"_data", "data", "tests"} & set(path.relative_to(ROOT).parts)
}
# scripts prepare a machine: they stand beside the package, not on one of its floors
PACKAGE = {path: text for path, text in MODULES.items() if not path.startswith("scripts/")}


def imported(tree: ast.AST) -> Iterator[str]:
    """The full names that a module imports anywhere, in functions and for annotations too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: str) -> str:
    """The part of the package that a module belongs to: a key of ``MAY_IMPORT``."""
    top, rest = path.split("/", 1)
    return rest.split("/")[0].removesuffix(".py") if top == "nemo_gym" else top


def arrows_against(part: str, source: str) -> list[str]:
    """What ``source``, a module of ``part``, imports although it may not."""
    names = list(imported(ast.parse(source)))
    used = {name.split(".")[1] for name in names if name.startswith("nemo_gym.")}
    used |= {top for name in names if (top := name.split(".")[0]) in ("images", "benchmarks")}
    return sorted(used - MAY_IMPORT[part] - {part, "__version__"})


def test_the_walk_sees_every_part() -> None:
    assert {part_of(path) for path in PACKAGE} == set(MAY_IMPORT)
    assert len(MODULES) > 50


@pytest.mark.parametrize(
    ("part", "source", "arrows"),
    [
        ("config", "from nemo_gym.errors import ConfigError", []),
        ("config", "def f():\n    from nemo_gym.containers.relay import serve", ["containers"]),
        ("containers", "import nemo_gym.config.resolve", ["config"]),
        ("servers", "from nemo_gym import config, errors", ["config"]),
        ("eval", "if TYPE_CHECKING:\n    from nemo_gym.rollouts import rows", ["rollouts"]),
        ("deployment", "from nemo_gym.deployment import session\nfrom nemo_gym.cli import main", ["cli"]),
        ("images", "from nemo_gym.servers.base import Server\nfrom nemo_gym.config import ConfigError", ["config"]),
        ("benchmarks", "from images.registry.app import x", ["images"]),
    ],
)
def test_the_check_itself(part: str, source: str, arrows: list[str]) -> None:
    assert arrows_against(part, source) == arrows


def test_no_arrow_runs_up() -> None:
    arrows = {path: arrows_against(part_of(path), text) for path, text in PACKAGE.items()}
    assert {path: found for path, found in arrows.items() if found} == {}


def test_only_the_engines_adapter_knows_the_sdk() -> None:
    tops = {path: {name.split(".")[0] for name in imported(ast.parse(text))} for path, text in PACKAGE.items()}
    assert {path for path, found in tops.items() if "docker" in found} == SDK_USERS


def test_modules_stay_small() -> None:
    """One that does not holds two ideas, or more."""
    lines = {path: len(text.splitlines()) for path, text in MODULES.items()}
    assert {path: count for path, count in lines.items() if count >= MOST_LINES} == {}


def test_no_module_beside_an_app_hides_one_of_the_standard_library() -> None:
    """In an image the server's folder comes first on the path: a ``numbers.py`` there keeps Python from starting."""
    names = {Path(path).stem: path for path in MODULES if path.startswith("images/")}
    assert {path for name, path in names.items() if name in sys.stdlib_module_names} == set()


def test_the_environment_is_not_read_at_import() -> None:
    read = {path: read_at_import(ast.parse(text)) for path, text in PACKAGE.items()}
    assert {path: found for path, found in read.items() if found} == {}


def read_at_import(tree: ast.Module) -> list[int]:
    """Lines that read an environment variable when the module is imported: outside of functions."""
    found = []
    waiting: list[ast.AST] = [node for node in tree.body if not _is_main_guard(node)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            waiting += [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]
            continue
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
            found.append(node.lineno)
        waiting += ast.iter_child_nodes(node)
    return found


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__")


def test_that_check_itself() -> None:
    assert read_at_import(ast.parse("import os\nA = os.environ\n")) == [2]
    assert read_at_import(ast.parse("import os\ndef f(a=os.getenv('A')): return os.environ")) == [2]
    assert read_at_import(ast.parse("import os\nclass A:\n    b = os.environ['B']")) == [3]
    assert read_at_import(ast.parse("import os\nif __name__ == '__main__':\n    os.environ")) == []


class TestExports:
    def test_environment(self) -> None:
        expected = {"plan_benchmark", "serve_benchmark", "TaskRunner", "PlannedBenchmark", "TaskResult", "EvalPlan"}
        assert set(nemo_gym.environment.__all__) == expected
        assert len(nemo_gym.environment.__all__) == len(expected)
        assert dir(nemo_gym.environment) == sorted(expected)
        for name in expected:
            assert getattr(nemo_gym.environment, name).__name__ == name
        with pytest.raises(AttributeError, match=r"'nemo_gym\.environment' has no attribute 'nothing'"):
            nemo_gym.environment.nothing  # noqa: B018

    def test_config(self) -> None:
        assert nemo_gym.config.__all__ == ["ConfigError"]
        assert nemo_gym.config.ConfigError is nemo_gym.errors.ConfigError

    def test_where_the_other_public_names_are(self) -> None:
        from nemo_gym.config.config_types import BaseServerConfig
        from nemo_gym.environment.benchmark_preparation import PreparationFailedError
        from nemo_gym.environment.benchmarks import BenchmarkConfig
        from nemo_gym.eval.eval_plan import EvalPlan

        server = BaseServerConfig(host="127.0.0.1", port=11000)
        assert (server.host, server.port, server.num_workers) == ("127.0.0.1", 11000, None)
        assert EvalPlan is nemo_gym.environment.EvalPlan
        assert PreparationFailedError.stop_exit_code == 76
        assert [*BenchmarkConfig.__annotations__][:5] == ["name", "path", "agent_name", "num_repeats", "dataset"]

    def test_the_package_itself(self) -> None:
        assert run("import nemo_gym; result = [n for n in vars(nemo_gym) if not n.startswith('_')]") == []


OBSERVED = """
import json, os, signal, sys, threading
before = dict(os.environ), list(sys.path), os.getcwd(), signal.getsignal(signal.SIGINT), os.listdir("/dev/fd")
{code}
after = dict(os.environ), list(sys.path), os.getcwd(), signal.getsignal(signal.SIGINT), os.listdir("/dev/fd")
assert before == after, "importing changed the process"
assert threading.active_count() == 1, threading.enumerate()
print(json.dumps(result))
"""


def run(code: str) -> Any:
    """What ``code`` leaves in ``result``, in a process of its own that must be as before afterwards."""
    command = [sys.executable, "-W", "error", "-c", OBSERVED.format(code=code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


class TestImporting:
    @pytest.mark.parametrize("module", [*LIGHT, "nemo_gym"])
    def test_changes_nothing_and_loads_nothing_heavy(self, module: str) -> None:
        heavy = ["docker", "requests", "omegaconf", "aiohttp", "pydantic", "rich", "yaml", "asyncio", "psutil"]
        assert run(f"import {module}; result = [m for m in {heavy} if m in sys.modules]") == []

    def test_the_public_names_neither(self) -> None:
        code = "from nemo_gym.environment import *; result = [m for m in ['docker', 'requests'] if m in sys.modules]"
        assert run(code) == []

    def test_nor_does_any_module(self) -> None:
        package = ROOT / "nemo_gym"
        names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(package.rglob("*.py"))]
        wanted = [name.removesuffix(".__init__") for name in names if "__main__" not in name and "_data" not in name]
        code = f"import importlib; result = [importlib.import_module(name).__name__ for name in {wanted}]"
        assert run(code) == wanted
