"""What a process gives up before it runs what a model wrote. None of it can be taken back.

Resource limits, the filter of system calls, and, where the kernel has it, Landlock, which leaves of the file system
nothing but Python's library to be read. All work without privileges.

Each program's process imports this, so it imports little: no pathlib.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
import struct
import sys
from typing import Final

from images.resources_servers.code_execution.syscalls import filter_program

# prctl(2)
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_FILTER: Final = 2
# landlock(7); the numbers of these calls are the same on every architecture
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH: Final = 1
_READ_FILE, _READ_DIR, _ALL_OF_FIRST_ABI = 1 << 2, 1 << 3, (1 << 13) - 1

_DESCRIPTORS: Final = 64

# What the standard library and the loader read at run time.
_READABLE: Final = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo",
    "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom",
)  # fmt: skip


def hide_from_others() -> None:
    """Keep this process's memory, descriptors and environment from others of the same user; ``OSError`` if it cannot.

    They are then root's in ``/proc``, and nobody but root may trace it (prctl(2), ``PR_SET_DUMPABLE``).
    """
    _prctl(_SET_DUMPABLE, 0)


def confine(*, memory_bytes: int, cpu_s: int) -> list[str]:
    """Give up all that computing does not need; which of ``seccomp`` and ``landlock`` are in force.

    ``cpu_s`` counts from the process's start. ``OSError`` where what every kernel has cannot be set.
    """
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    # When the container runs out of memory, it is this process that goes. What is hidden cannot write there any more.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123
        score.write("1000")
    hide_from_others()
    _prctl(_SET_NO_NEW_PRIVS, 1)
    in_force = ["landlock"] if _restrict_files() else []
    # The signal of the first limit says what it is; a program that ignores it is killed by the second.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _DESCRIPTORS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    return [*in_force, "seccomp"] if _filter_calls() else in_force


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:  # the rest must be 0
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}): {os.strerror(ctypes.get_errno())}")


def _filter_calls() -> bool:
    program = filter_program()
    if program is None:
        return False
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: how many instructions of 8 bytes, and where
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    return bool(_libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.addressof(header), 0, 0) == 0)


def _restrict_files() -> bool:
    attributes = ctypes.create_string_buffer(struct.pack("Q", _ALL_OF_FIRST_ABI), 8)
    ruleset = _libc.syscall(_CREATE_RULESET, ctypes.addressof(attributes), 8, 0, 0)
    if ruleset < 0:
        return False
    for place in {*_READABLE, os.__file__.rpartition("/")[0], f"{sys.base_exec_prefix}/lib"}:
        with contextlib.suppress(OSError):  # it is not there
            descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
            access = _READ_FILE | _READ_DIR if stat.S_ISDIR(os.fstat(descriptor).st_mode) else _READ_FILE
            # struct landlock_path_beneath_attr, packed
            rule = ctypes.create_string_buffer(struct.pack("=Qi", access, descriptor), 12)
            _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.addressof(rule), 0)
            os.close(descriptor)
    restricted = _libc.syscall(_RESTRICT_SELF, ruleset, 0, 0, 0) == 0
    os.close(ruleset)
    return bool(restricted)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.syscall.argtypes = [ctypes.c_long] * 5
_libc.syscall.restype = ctypes.c_long
