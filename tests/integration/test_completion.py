"""Completion in a real zsh on a terminal; what bash does is a unit test."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

READY = "ready$ "


def test_zsh_completes_commands_and_names(tmp_path: Path) -> None:
    program = tmp_path / "gym"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m nemo_gym "$@"\n')
    program.chmod(0o755)
    (tmp_path / "_gym").write_bytes(
        subprocess.run([program, "completion", "zsh"], check=True, capture_output=True).stdout
    )
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb", "ZDOTDIR": str(tmp_path)}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environ
    ) as shell:
        os.close(theirs)
        try:
            type_in(
                ours, f"PS1={shlex.quote(READY)}; fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D\n"
            )
            read_until(ours, f"\r{READY}")
            for words, completed in {
                "gym completion z": "gym completion zsh ",
                "gym eval run --benchmark truth": "gym eval run --benchmark truthfulqa_mc1 ",
                "gym list models llam": "gym list models llama_cpp_model ",
            }.items():
                type_in(ours, words + "\t")
                read_until(ours, completed)
                type_in(ours, "\x15")  # the line is emptied again
        finally:
            shell.kill()
            os.close(ours)


def type_in(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


def read_until(terminal: int, wanted: str, timeout_s: float = 20.0) -> None:
    """Read what the terminal shows until that has been among it."""
    shown, deadline = "", time.monotonic() + timeout_s
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            pytest.fail(f"{wanted!r} was not shown; this was: {shown!r}")
        shown += os.read(terminal, 65536).decode(errors="replace")
