"""A filter of system calls (seccomp) that leaves a program what computing needs, and nothing that reaches others.

A program may read files that it can open for reading, allocate memory, tell the time, sleep, and use what descriptors
it has. It may not start a process or thread, execute, write to files, use sockets, send signals, watch or change other
processes, or do anything else that is not listed: such a call fails with ``EPERM``. As it cannot signal itself either,
what killed it was the kernel or whoever started it.

Numbers of calls are those of the kernel's headers, ``asm/unistd_64.h`` and ``asm-generic/unistd.h``; the format of
filters is that of seccomp(2), ``linux/filter.h`` and ``linux/audit.h``.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Final

_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | errno.EPERM
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Of each call the number on x86_64 and on aarch64; None where an architecture lacks it.
_FREE: Final[dict[str, tuple[int | None, int | None]]] = {
    # descriptors
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "lseek": (8, 62),
    "close": (3, 57), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "eventfd2": (290, 19),
    # files, to read
    "stat": (4, None), "lstat": (6, None), "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "statfs": (137, 43), "fstatfs": (138, 44),
    "fadvise64": (221, 223), "umask": (95, 166),
    # memory
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "mincore": (27, 232),
    # time
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "alarm": (37, None),
    "setitimer": (38, 103), "getitimer": (36, 102),
    # itself
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158), "getpgid": (121, 155),
    "getpgrp": (111, None), "getsid": (124, 156), "getrusage": (98, 165), "getrlimit": (97, 163), "uname": (63, 160),
    "sysinfo": (99, 179), "getcpu": (309, 168), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "getrandom": (318, 278), "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "rseq": (334, 293), "membarrier": (324, 283), "set_tid_address": (218, 96), "arch_prctl": (158, None),
    "exit": (60, 93), "exit_group": (231, 94), "restart_syscall": (219, 128),
    # its own signals
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, None),
}  # fmt: skip

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: not F_SETOWN, which sends signals to others.
_FCNTL: Final = (0, 1, 2, 3, 4, 1030)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTL: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)

_Instruction = tuple[int, int, int, int]


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter as the kernel reads it; None for a machine whose calls are not known here."""
    known = _ARCHITECTURES.get(machine or os.uname().machine)
    if known is None:
        return None
    architecture, column = known
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip
    for numbers in _FREE.values():
        if (number := numbers[column]) is not None:
            program += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for numbers, body in _conditional():
        if (number := numbers[column]) is not None:
            program += [(_IF_EQUAL, 0, len(body), number), *body]
    program.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _conditional() -> list[tuple[tuple[int | None, int | None], list[_Instruction]]]:
    """Calls that are allowed with some arguments: their numbers, and what decides."""
    return [
        ((2, None), _none_of_bits(1, _WRITING)),  # open
        ((257, 56), _none_of_bits(2, _WRITING)),  # openat
        ((72, 25), _one_of(1, _FCNTL)),  # fcntl
        ((16, 29), _one_of(1, _IOCTL)),  # ioctl
        ((302, 261), _is_null(2)),  # prlimit64, to read limits
    ]


def _none_of_bits(argument: int, bits: int) -> list[_Instruction]:
    low = _ARGUMENTS + 8 * argument
    return [(_LOAD, 0, 0, low), (_IF_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]


def _one_of(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    body: list[_Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
    for value in values:
        body += [(_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*body, (_RETURN, 0, 0, _REFUSE)]


def _is_null(argument: int) -> list[_Instruction]:
    low = _ARGUMENTS + 8 * argument
    return [
        (_LOAD, 0, 0, low), (_IF_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, low + 4), (_IF_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
