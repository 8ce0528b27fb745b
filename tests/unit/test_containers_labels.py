"""Owners are told apart, and one is called dead on proof only."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.containers import labels
from nemo_gym.containers.labels import Liveness, Owner, liveness, new_session_id, process_start, session_labels

TEXT = st.text()
OWNERS = st.builds(Owner, host=TEXT, boot=TEXT, pid_namespace=TEXT, pid=st.integers(1, 2**22), start=TEXT)


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until the block ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n")


class TestLabels:
    def test_the_keys(self) -> None:
        owner = Owner("box/0123456789ab", "boot-1", "pid:[4026531836]", 42, "1234")
        assert session_labels("0a1b2c3d4e", owner) == {
            "nemo-gym.session": "0a1b2c3d4e",
            "nemo-gym.owner-host": "box/0123456789ab",
            "nemo-gym.owner-boot": "boot-1",
            "nemo-gym.owner-pid-namespace": "pid:[4026531836]",
            "nemo-gym.owner-pid": "42",
            "nemo-gym.owner-start": "1234",
            "nemo-gym.published-host": "",
            "nemo-gym.benchmark": "",
            "nemo-gym.detached": "false",
        }
        told = session_labels("0a1b2c3d4e", owner, published_host="10.0.0.1", benchmark="ifeval", detached=True)
        assert {key: told[key] for key in ("nemo-gym.published-host", "nemo-gym.benchmark", "nemo-gym.detached")} == {
            "nemo-gym.published-host": "10.0.0.1",
            "nemo-gym.benchmark": "ifeval",
            "nemo-gym.detached": "true",
        }
        assert labels.selector("0a1b2c3d4e") == "nemo-gym.session=0a1b2c3d4e"

    @given(OWNERS)
    def test_round_trip(self, owner: Owner) -> None:
        assert Owner.from_labels(owner.to_labels()) == owner
        assert Owner.from_labels({**session_labels("s", owner), "other": "x"}) == owner

    @given(OWNERS, st.sampled_from(list(Owner("", "", "", 1, "").to_labels())))
    def test_half_an_owner_is_none(self, owner: Owner, missing: str) -> None:
        found = owner.to_labels()
        del found[missing]
        assert Owner.from_labels(found) is None

    @pytest.mark.parametrize("pid", ["", "x", "1.5"])
    def test_a_pid_that_is_none(self, pid: str) -> None:
        assert Owner.from_labels({**Owner("", "", "", 1, "").to_labels(), labels.OWNER_PID: pid}) is None

    def test_session_ids(self) -> None:
        made = {new_session_id() for _ in range(1000)}
        assert len(made) == 1000
        assert all(re.fullmatch("[0-9a-f]{10}", session_id) for session_id in made)

    def test_the_machine_id_is_not_shown(self) -> None:
        machine = Path("/etc/machine-id")
        if machine.is_file() and (text := machine.read_text(encoding="ascii").strip()):
            assert text not in Owner.current().host
        assert Owner.current().host == Owner.current().host


class TestLiveness:
    def test_this_process_lives(self) -> None:
        owner = Owner.current()
        assert owner.pid == os.getpid()
        assert owner.start
        assert liveness(owner) is Liveness.ALIVE

    def test_a_child_lives_and_dies(self) -> None:
        with child() as process:
            owner = Owner.of_pid(process.pid)
            assert liveness(owner) is Liveness.ALIVE
        assert process_start(process.pid) is None
        assert liveness(owner) is Liveness.DEAD

    def test_a_zombie_is_dead(self) -> None:
        with child() as process:
            owner = Owner.of_pid(process.pid)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not collected yet
            assert process_start(process.pid) is None
            assert liveness(owner) is Liveness.DEAD

    def test_a_pid_taken_over_by_another_process(self) -> None:
        assert liveness(dataclasses.replace(Owner.current(), start="1")) is Liveness.DEAD

    def test_before_a_reboot(self) -> None:
        assert liveness(dataclasses.replace(Owner.current(), boot="another")) is Liveness.DEAD

    def test_without_proc_the_time_zone_does_not_matter(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on macOS: ``sysctl`` tells the time of the boot, and a date of the zone and language of whoever asks."""
        sysctl = tmp_path / "sysctl"
        sysctl.write_text(
            '#!/bin/sh\nprintf \'{ sec = %s, usec = 0 } \' "$BOOTED"; date -d "@$BOOTED"; echo "$LANG $TZ"\n'
        )
        sysctl.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("BOOTED", "1700000000")
        read_text = Path.read_text

        def without_boot_id(path: Path, *args: str, **options: str) -> str:
            if path.name == "boot_id":
                raise FileNotFoundError
            return read_text(path, *args, **options)

        monkeypatch.setattr(Path, "read_text", without_boot_id)
        monkeypatch.setenv("TZ", "Europe/Berlin")
        owner = Owner.current()
        for zone, language in (("America/New_York", "C"), ("Europe/Berlin", "de_DE.UTF-8")):
            monkeypatch.setenv("TZ", zone)
            monkeypatch.setenv("LANG", language)
            assert liveness(owner) is Liveness.ALIVE
        monkeypatch.setenv("BOOTED", "1700000099")
        assert liveness(owner) is Liveness.DEAD

    @pytest.mark.parametrize(
        "elsewhere",
        [
            {"host": "elsewhere", "boot": "another"},
            {"pid_namespace": "pid:[1]"},
            {"pid_namespace": "pid:[1]", "pid": 2**22 + 1},
        ],
    )
    def test_what_cannot_be_judged(self, elsewhere: dict[str, str]) -> None:
        assert liveness(dataclasses.replace(Owner.current(), **elsewhere)) is Liveness.UNKNOWN

    def test_another_host_name_of_the_same_kernel_does_not_matter(self) -> None:
        assert liveness(dataclasses.replace(Owner.current(), host="renamed")) is Liveness.ALIVE

    @pytest.mark.parametrize("pid", [2**22 + 1, 10**30])
    def test_a_pid_beyond_all_bounds(self, pid: int) -> None:
        assert liveness(dataclasses.replace(Owner.current(), pid=pid)) is Liveness.DEAD

    def test_a_process_that_is_hidden_may_live(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """With hidepid, /proc does not show other users' processes; only a signal tells that there is one."""

        def refuse(pid: int, signal_number: int) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", refuse)
        monkeypatch.setattr(labels, "process_start", lambda pid: None)
        assert liveness(dataclasses.replace(Owner.current(), pid=2**22 + 1)) is Liveness.UNKNOWN
        # shown, and without a start time: a zombie of another user
        assert liveness(Owner.current()) is Liveness.DEAD

    def test_a_process_name_that_looks_like_its_own_end(self, tmp_path: Path) -> None:
        program = tmp_path / ") Z (1 2"
        program.symlink_to(sys.executable)
        with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as process:
            start = process_start(process.pid)
            process.communicate(b"\n")
        assert start is not None
        assert int(start) >= int(process_start(os.getpid()) or 0)
