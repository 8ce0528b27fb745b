from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.containers.port_proxy import connections_within, find_connection_limit, is_proxy_of

LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax processes 10 10 processes\nMax open files    {}   20000   files\n"
COMMAND = ["/usr/sbin/docker-proxy", "-proto", "tcp", "-host-ip", "127.0.0.1", "-host-port", "32769"]


def test_six_descriptors_for_each_connection() -> None:
    assert connections_within(LIMITS.format(20000)) == 3300
    assert connections_within(LIMITS.format(100)) == 1
    assert connections_within(LIMITS.format("unlimited")) is None
    assert connections_within("") is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (COMMAND, True),
        ([*COMMAND[:2], "udp", *COMMAND[3:]], False),
        ([*COMMAND[:-1], "32768"], False),
        (["/usr/bin/other", *COMMAND[1:]], False),
        ([], False),
    ],
)
def test_whose_proxy_it_is(command: list[str], expected: bool) -> None:
    assert is_proxy_of(command, 32769) is expected


def test_the_limit_of_a_running_proxy_is_found(tmp_path: Path) -> None:
    proxy = tmp_path / "docker-proxy"
    shutil.copy(shutil.which("sh") or "/bin/sh", proxy)
    started = [str(proxy), "-c", "ulimit -Sn 1400; echo; read line", "-host-port", "61234"]
    # a shell reads its options first: what makes it a proxy of that port stands where the proxy has it
    with subprocess.Popen(
        [sys.executable, "-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])", *started],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert find_connection_limit(61234) == 200
        assert find_connection_limit(61235) is None
        process.communicate(b"\n")
