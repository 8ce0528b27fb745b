"""What ``gym`` does where there is nothing but the installed package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_gym
from nemo_gym.testing import ModelEndpointContainer, Script


def gym(*words: str) -> str:
    command = [sys.executable, "-m", "nemo_gym", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_runs_from_the_installed_package() -> None:
    package = Path(nemo_gym.__file__).parent
    assert package.parent.name == "site-packages"
    assert (package / "py.typed").is_file()
    assert gym("--version") == f"gym {nemo_gym.__version__}\n"


def test_it_lists_what_there_is() -> None:
    listed = {entry["name"]: entry for entry in json.loads(gym("list", "benchmarks", "--json"))}
    assert listed["counter"]["num_rows"] == 44
    assert [name for name, entry in listed.items() if "problem" in entry] == []
    assert "openai_model" in gym("list", "models")


def test_it_plans(tmp_path: Path) -> None:
    assert len(json.loads(gym("eval", "plan", "--benchmark", "counter", "--json"))["tasks"]) == 44


def test_it_runs_a_task(model_endpoint: ModelEndpointContainer, tmp_path: Path) -> None:
    model_endpoint.load(Script.answering("I do not know."))
    model = ["--model", "scripted", "--model-url", model_endpoint.url, "--model-api-key", model_endpoint.api_key]
    output = tmp_path / "results.jsonl"
    gym("eval", "run", "--benchmark", "counter", *model, "--limit", "1", "--output", str(output))
    (result,) = map(json.loads, output.read_text().splitlines())
    assert result["reward"] == 0.0


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_it_completes(shell: str) -> None:
    assert "_gym_benchmarks" in gym("completion", shell)
    assert "counter" in gym("completion", "names", "benchmarks").split()
