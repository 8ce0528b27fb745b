"""The filter as the kernel would read it, for both architectures, of which a machine that runs this has one."""

from __future__ import annotations

import struct

import pytest

from images.resources_servers.code_execution.syscalls import filter_program

ALLOWED, REFUSED = 0x7FFF0000, 0x00050001
X86_64, AARCH64 = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)


def decided(machine: tuple[str, int], number: int, *arguments: int) -> int:
    """What the filter returns for a call: the instructions of classic BPF that it uses, run here."""
    program = filter_program(machine[0])
    assert program is not None
    data = struct.pack("<IIQ6Q", number, machine[1], 0, *[*arguments, 0, 0, 0, 0, 0, 0][:6])
    instructions = list(struct.iter_unpack("HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x15:
            at += if_true if accumulator == value else if_false
        elif code == 0x45:
            at += if_true if accumulator & value else if_false
        else:
            assert code == 0x06
            return int(value)


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "decision"),
    [
        (X86_64, 0, (), ALLOWED),  # read
        (X86_64, 9, (), ALLOWED),  # mmap
        (X86_64, 2, (0, 0), ALLOWED),  # open, to read
        (X86_64, 2, (0, 1), REFUSED),  # to write
        (X86_64, 257, (0, 0, 0o2000000), ALLOWED),  # openat, to read
        (X86_64, 257, (0, 0, 0o200000), ALLOWED),  # a folder
        (X86_64, 257, (0, 0, 0o2), REFUSED),  # to read and write
        (X86_64, 257, (0, 0, 0o100), REFUSED),  # to create
        (X86_64, 257, (0, 0, 0o20200000), REFUSED),  # without a name
        (X86_64, 200, (77, 6), REFUSED),  # tkill
        (X86_64, 302, (78, 0, 0), ALLOWED),  # prlimit64, to read
        (X86_64, 302, (78, 0, 4096), REFUSED),
        (X86_64, 302, (78, 0, 1 << 32), REFUSED),
        (X86_64, 72, (3, 1), ALLOWED),  # fcntl F_GETFD
        (X86_64, 72, (3, 8), REFUSED),  # F_SETOWN
        (X86_64, 16, (0, 0x5401), ALLOWED),  # ioctl TCGETS
        (X86_64, 16, (0, 0x5412), REFUSED),  # TIOCSTI
        *((X86_64, number, (), REFUSED) for number in (
            41, 53, 62, 234, 56, 57, 58, 59, 77, 82, 83, 87, 90, 101, 141, 157, 165, 272, 310, 311, 317, 319, 322, 321,
            424, 425, 434, 435, 437, 438, 462, 600,
        )),
        (X86_64, 0x40000000, (), REFUSED),  # read, of x32
        (AARCH64, 63, (), ALLOWED),  # read
        (AARCH64, 222, (), ALLOWED),  # mmap
        (AARCH64, 56, (0, 0, 0), ALLOWED),  # openat
        (AARCH64, 56, (0, 0, 0o1), REFUSED),
        *((AARCH64, number, (), REFUSED) for number in (
            34, 35, 38, 46, 97, 117, 129, 131, 140, 167, 198, 220, 221, 270, 271, 435,
        )),
        (("x86_64", 0x40000003), 0, (), REFUSED),  # a call of the 32-bit kind
    ],
)  # fmt: skip
def test_calls_are_allowed_or_refused(
    machine: tuple[str, int], number: int, arguments: tuple[int, ...], decision: int
) -> None:
    assert decided(machine, number, *arguments) == decision


def test_other_machines_have_no_filter() -> None:
    assert filter_program("riscv64") is None
