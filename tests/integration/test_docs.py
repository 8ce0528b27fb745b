"""The examples of README.md and docs/ that need an engine, and the recipes for CI, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documented import ENDPOINT, ROOT, environment, name_of, needs_engine, pages, run_script, work_through

RECIPES = ROOT / "docs" / "recipes"
# What belongs to the service or changes this machine, and is not run: the first words of such a command.
SERVICES_OWN = ("apt-get",)
PORT = 18_080


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model endpoint with both APIs, as a user has one on the loopback: its address."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from aiohttp import web
from images.testing.model_endpoint.app import build_app
web.run_app(build_app("none"), host="127.0.0.1", port={PORT}, print=None)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd="/") as started:
        yield f"http://127.0.0.1:{PORT}/v1"
        started.terminate()


@pytest.mark.parametrize("page", [page for page in pages() if needs_engine(page)], ids=name_of)
def test_a_page_can_be_followed(page: Path, tmp_path: Path, endpoint: str) -> None:
    assert work_through(page, tmp_path, {ENDPOINT: endpoint, "11000": "18081"}) > 0


# ------------------------------------------------------------------------------------------------------ recipes for CI


def github_steps() -> list[str]:
    """The scripts of the recipe's steps, in order. Steps that use an action are the service's own."""
    recipe = yaml.safe_load((RECIPES / "github-actions.yml").read_text(encoding="utf-8"))
    (job,) = recipe["jobs"].values()
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    return [step["run"] for step in job["steps"] if "run" in step]


def gitlab_steps() -> list[str]:
    """The recipe's commands: the service runs them all in one shell."""
    recipe = yaml.safe_load((RECIPES / "gitlab-ci.yml").read_text(encoding="utf-8"))
    (job,) = recipe.values()
    commands = [*job["before_script"], *job["script"]]
    ours = [command for command in commands if not command.startswith(SERVICES_OWN)]
    assert len(ours) == len(commands) - 1
    return ["\n".join(ours)]


def variables_of(recipe: dict[str, Any]) -> dict[str, str]:
    """What the recipe sets for every step, but for where the engine is and the service's own folders."""
    (job,) = recipe["jobs"].values() if "jobs" in recipe else recipe.values()
    variables = job.get("env") or job["variables"]
    return {k: str(v) for k, v in variables.items() if not k.startswith("DOCKER_") and "$" not in str(v)}


def of_this_checkout(step: str) -> str:
    """The step with its scripts and environment taken from the checkout, while it runs in a folder of its own."""
    return re.sub(r"(?<![\w./])(scripts|\.venv/bin)/", rf"{ROOT}/\1/", step)


def test_the_recipes_steps_run_in_order(tmp_path: Path) -> None:
    """Both recipes, one after the other in one folder: the second has expected results, and finds the images saved."""
    archive = tmp_path / ".cache" / "images" / "images.tar.gz"
    for name, steps in (("github-actions.yml", github_steps()), ("gitlab-ci.yml", gitlab_steps())):
        variables = variables_of(yaml.safe_load((RECIPES / name).read_text(encoding="utf-8")))
        environ = {**environment(tmp_path), **variables, "LIMIT": "2", "ENGINE_HOST": "127.0.0.1"}
        for number, step in enumerate(steps, start=1):
            run_script(of_this_checkout(step), tmp_path, environ, where=f"{name}, step {number}")
        results = (tmp_path / "results" / "ci.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(results) == 2
        (tmp_path / "results" / "ci.jsonl").rename(tmp_path / "expected.jsonl")
        assert archive.stat().st_size > 100_000_000
