"""The program that is pid 1 of a snippet's namespace, as an executable of 180 bytes. Imported by `guest.py`.

Init only has to exist: it dies with the process that started it, lets the kernel reap the processes that its namespace
leaves to it, and holds no descriptors. A fork of the zygote would do, too, and take a quarter of the CPU time of a run:
the kernel copies the zygote's page tables, copies every page that the zygote then writes, and frees all of it at the
end. What follows is the machine code of

    prctl(PR_SET_PDEATHSIG, SIGKILL); rt_sigaction(SIGCHLD, {SIG_IGN}, NULL, 8); close_range(0, ~0, 0);
    for (;;) pause();

Standard library only.
"""

from __future__ import annotations

import os
import platform
import struct

PATH = "/init"

_X86_64 = bytes.fromhex(
    "689d000000 58 6a01 5f 6a09 5e 0f05"  # rax = 157 prctl, rdi = 1, rsi = 9
    "6a00 6a00 6a00 6a01"  # struct sigaction on the stack: mask, restorer, flags, handler = SIG_IGN
    "6a0d 58 6a11 5f 4889e6 31d2 6a08 415a 0f05"  # rax = 13 rt_sigaction, rdi = 17, rsi = rsp, rdx = 0, r10 = 8
    "b8b4010000 31ff 6aff 5e 31d2 0f05"  # eax = 436 close_range, edi = 0, rsi = -1, edx = 0
    "6a22 58 0f05 ebf9"  # eax = 34 pause, again and again
)
_SVC = 0xD4000001
_AARCH64 = struct.pack(
    "<24I",
    # (Run in an emulator of this processor, which shows the calls and their arguments.)
    *(0xD28014E8, 0xD2800020, 0xD2800121, _SVC),  # x8 = 167 prctl, x0 = 1, x1 = 9
    *(0xD2800021, 0xA9BE7FE1, 0xA9017FFF),  # struct sigaction on the stack: handler = SIG_IGN, and zeros
    *(0xD28010C8, 0xD2800220, 0x910003E1, 0xD2800002, 0xD2800103, _SVC),  # x8 = 134 rt_sigaction, 17, sp, 0, 8
    *(0xD2803688, 0xD2800000, 0x92800001, 0xD2800002, _SVC),  # x8 = 436 close_range, 0, -1, 0
    # x8 = 73 ppoll, which has no descriptors and no time limit; then back to its first argument
    *(0xD2800000, 0xD2800001, 0xD2800003, 0xD2800928, _SVC, 0x17FFFFFB),
)
_CODE = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
_ADDRESS, _HEADERS = 0x400000, 64 + 56


def executable() -> bytes:
    """Return the program of this machine, an ELF file: its header, one segment, and the code, which starts first."""
    machine, code = _CODE[platform.machine()]
    size = _HEADERS + len(code)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little-endian
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, machine, 1, _ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x1000)  # read and execute
    return header + segment + code


def start() -> int:
    """Start the program at `PATH` without a copy of this process's memory; return its process id."""
    return os.posix_spawn(PATH, ["init"], {})
