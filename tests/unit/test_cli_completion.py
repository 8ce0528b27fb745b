"""Completion: the script for bash in a real bash, and the names it asks for."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.completion import completion_script
from nemo_gym.cli.main import build_parser, main

# what bash does at a Tab: the words so far, the last one to be completed
_COMPLETE = """
{script}
COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}
_shtab_gym gym "${{COMP_WORDS[COMP_CWORD]}}" ""
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``gym`` to call, of this very package."""
    program = tmp_path_factory.mktemp("bin") / "gym"
    root = Path(__file__).parents[2]
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {sys.executable} -m nemo_gym "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def script() -> str:
    return completion_script(build_parser(), "bash")


def completions(script: str, gym: Path, *words: str) -> list[str]:
    line = [str(gym), *words]
    program = _COMPLETE.format(script=script, words=shlex.join(line), last=len(words), line=shlex.quote(" ".join(line)))
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ev",), ["eval"]),
        (("c",), ["completion", "clean"]),
        (("eval", "pl"), ["plan"]),
        (("eval", "run", "--benchm"), ["--benchmark"]),
        (("eval", "run", "--benchmark", "truth"), ["truthfulqa_mc1"]),
        (("eval", "run", "--benchmark", "gsm8k/c"), ["gsm8k/corrected"]),
        (("eval", "run", "--model-type", "llama"), ["llama_cpp_model"]),
        (("list", "resources-servers", "mc"), ["mcqa"]),
        (("new", "benchmark", "x", "--agent", "simp"), ["simple_agent"]),
        (("clean", "--dr"), ["--dry-run"]),
    ],
)
def test_bash(script: str, gym: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert completions(script, gym, *words) == expected


def test_zsh_gets_the_same_commands_and_names() -> None:
    script = completion_script(build_parser(), "zsh")
    assert script.startswith("#compdef gym\n")
    assert "_gym_benchmarks() {" in script
    options = [line.strip() for line in script.splitlines() if "--benchmark[" in line]
    assert {line.rpartition(":")[2] for line in options} == {'_gym_benchmarks"'}
    assert len(options) > 5


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == completion_script(build_parser(), shell) + "\n"


def test_names_are_those_of_every_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mine/config.yaml", "mine/hard.yaml"):
        (tmp_path / "benchmarks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "benchmarks" / name).write_text("config_paths: []\n")
    monkeypatch.chdir(tmp_path)
    assert main(["completion", "names", "benchmarks"]) == 0
    names = capsys.readouterr().out.split()
    assert {"mine", "mine/hard", "gsm8k", "gsm8k/corrected"} <= set(names)
    assert names == sorted(names)


def test_a_kind_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "names", "benchmark"]) == 2
    assert "must be one of benchmarks, models, agents, resources-servers; found 'benchmark'" in capsys.readouterr().err
