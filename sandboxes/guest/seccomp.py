"""The seccomp filter, as classic BPF: system calls that untrusted code may not make.

It is a deny list, because Python programs use very many calls. Denied are calls to kernel subsystems that a snippet
does not need, calls that allocate memory outside the resource limits, and calls that report how other programs use
shared files. Unknown (newer) calls return ENOSYS. The host assembles the filter and the guest loads it, without
libseccomp: the guest has only the standard library.
"""

from __future__ import annotations

import errno
import platform
import struct

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6], read as little-endian words.
_NR, _ARCH, _ARG0, _ARG1, _ARG2, _ARG3, _ARG5 = 0, 4, 16, 24, 32, 40, 56

_LOAD, _RETURN, _JUMP = 0x20, 0x06, 0x05  # BPF_LD|W|ABS, BPF_RET|K, BPF_JMP|JA
_IF_EQUAL, _IF_GREATER, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x25, 0x35, 0x45

_KILL_PROCESS, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000

_X32_BIT = 0x40000000
_LAST_KNOWN_CALL = 462  # mseal; everything above 423 has one number on all architectures
_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_PARENT_FLAG = 0x8000  # CLONE_PARENT: the new process would be a child of the zygote, not of the snippet
_RLIMIT_CORE = 4
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# FIOSETOWN, SIOCSPGRP: they direct signals to another process when a descriptor is ready
_SIGNAL_OWNER = (0x8901, 0x8902)
_SOCKET_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: the network namespace has no way out

_DENIED_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "memfd_secret": 447, "process_mrelease": 448, "set_mempolicy_home_node": 450, "cachestat": 451,
}  # fmt: skip

# memfd_create, shmget, msgget and mq_open allocate memory outside RLIMIT_AS and the tmpfs size. inotify and fanotify
# report who opens the interpreter's files, which the host shares; mincore and cachestat report which pages were read.
_DENIED = {
    "x86_64": {
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319, "io_setup": 206,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "personality": 135,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "fanotify_mark": 301,
        "inotify_init": 253, "inotify_add_watch": 254, "inotify_init1": 294, "mincore": 27,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298,
        "init_module": 175, "delete_module": 176, "finit_module": 313, "kexec_load": 246, "kexec_file_load": 320,
        "reboot": 169, "swapon": 167, "swapoff": 168, "syslog": 103, "acct": 163, "quotactl": 179,
        "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
        "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "vhangup": 153,
        "vmsplice": 278, "mbind": 237, "set_mempolicy": 238, "migrate_pages": 256, "move_pages": 279,
        "lookup_dcookie": 212, "nfsservctl": 180, "uselib": 134, "_sysctl": 156,
    },
    "aarch64": {
        "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "memfd_create": 279, "io_setup": 0,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "personality": 92,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "fanotify_init": 262, "fanotify_mark": 263,
        "inotify_init1": 26, "inotify_add_watch": 27, "mincore": 232,
        "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "userfaultfd": 282, "perf_event_open": 241,
        "init_module": 105, "delete_module": 106, "finit_module": 273, "kexec_load": 104, "kexec_file_load": 294,
        "reboot": 142, "swapon": 224, "swapoff": 225, "syslog": 116, "acct": 89, "quotactl": 60,
        "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
        "sethostname": 161, "setdomainname": 162, "vhangup": 58,
        "vmsplice": 75, "mbind": 235, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239,
        "lookup_dcookie": 18, "nfsservctl": 42,
    },
}  # fmt: skip

# Allowed in a workspace if a control group counts its memory: databases share memory with their processes, and browsers
# and build tools make memory files. Its ipc namespace is its own.
_ALLOWED_IF_COUNTED = ("shmget", "semget", "msgget", "memfd_create")

# Denied to a worker that only reads and calculates: programs, sockets, signals and priorities of other processes, and
# changes to files, since it has no mount namespace. The numbers that all architectures share come first.
_DENIED_READER_EVERYWHERE = {"pidfd_send_signal": 424, "pidfd_open": 434, "openat2": 437, "fchmodat2": 452}
_DENIED_READER = {
    "x86_64": {
        "execve": 59, "execveat": 322, "socket": 41, "connect": 42, "bind": 49, "kill": 62, "tkill": 200,
        "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "setpriority": 141, "ioprio_set": 251,
        "sched_setaffinity": 203, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314,
        "truncate": 76, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88,
        "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "utime": 132, "mknod": 133, "utimes": 235,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "mkdirat": 258, "mknodat": 259, "fchownat": 260, "futimesat": 261, "unlinkat": 263,
        "renameat": 264, "linkat": 265, "symlinkat": 266, "fchmodat": 268, "utimensat": 280, "renameat2": 316,
    },
    "aarch64": {
        "execve": 221, "execveat": 281, "socket": 198, "connect": 203, "bind": 200, "kill": 129, "tkill": 130,
        "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "setpriority": 140, "ioprio_set": 30,
        "sched_setaffinity": 122, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setattr": 274,
        "truncate": 45, "mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38,
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88, "setxattr": 5, "lsetxattr": 6,
        "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "renameat2": 276,
    },
}  # fmt: skip
_OPEN_TO_WRITE = 0x1 | 0x2 | 0x40 | 0x200  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC

DENIED_FCNTL = {
    "F_SETOWN": 8, "F_SETSIG": 10, "F_SETOWN_EX": 15, "F_SETLEASE": 1024, "F_NOTIFY": 1026,
    "F_SET_RW_HINT": 1036, "F_SET_FILE_RW_HINT": 1038,
}  # fmt: skip
"""Commands of fcntl that return EPERM. F_NOTIFY and leases report how other processes use a folder or file, and a lease
makes them wait; the first three choose the receiver of a signal; hints stay with a file for its next reader."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_IOCTL = {"x86_64": 16, "aarch64": 29}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_OPENAT = {"x86_64": 257, "aarch64": 56}
_OPEN = {"x86_64": 2}  # other machines have only openat
_SETRLIMIT = {"x86_64": 160, "aarch64": 164}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}

# Calls with flags that reveal which pages of a file are cached, or evict them: shared files could carry messages
# between runs.
_PREADV2, _PWRITEV2 = {"x86_64": 327, "aarch64": 286}, {"x86_64": 328, "aarch64": 287}
_FADVISE64, _MADVISE = {"x86_64": 221, "aarch64": 223}, {"x86_64": 28, "aarch64": 233}
_POSIX_FADV_DONTNEED, _MADV_PAGEOUT = 4, 21


def supported_machines() -> list[str]:
    return sorted(_AUDIT_ARCH)


def denied_calls(machine: str) -> dict[str, int]:
    return _DENIED[machine] | _DENIED_EVERYWHERE


def seccomp_filter(machine: str | None = None, *, reads_only: bool = False, in_group: bool = False) -> bytes:
    """Return the filter as an array of `struct sock_filter`. Raises KeyError for an unsupported machine.

    Args:
        machine: a name as from `platform.machine()`; this machine by default.
        reads_only: for a process without mount and network namespace: it may read files, but not change files, open
            sockets, run programs or signal other processes.
        in_group: whether a control group counts its memory: it may then share memory, and make memory files.
    """
    machine = machine or platform.machine()
    program = [
        _op(_LOAD, _ARCH),
        _op(_IF_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _op(_LOAD, _NR),
    ]
    if machine == "x86_64":
        program += _when(_IF_AT_LEAST, _X32_BIT, _KILL_PROCESS)
    program += _when(_IF_GREATER, _LAST_KNOWN_CALL, _ERRNO | errno.ENOSYS)
    # glibc falls back to clone, and a filter can inspect its flags (clone3 passes them by pointer).
    program += _when(_IF_EQUAL, _CLONE3, _ERRNO | errno.ENOSYS)
    denials = denied_calls(machine)
    if in_group:
        denials = {name: number for name, number in denials.items() if name not in _ALLOWED_IF_COUNTED}
    if reads_only:
        denials |= _DENIED_READER[machine] | _DENIED_READER_EVERYWHERE
    program += _refuse(sorted(denials.values()))
    if reads_only:
        to_write = _when(_IF_ANY_BIT, _OPEN_TO_WRITE, _ERRNO | errno.EPERM)
        program += _for_call(_OPENAT[machine], _ARG2, to_write)
        if machine in _OPEN:
            program += _for_call(_OPEN[machine], _ARG1, to_write)
    program += _for_call(
        _CLONE[machine], _ARG0, _when(_IF_ANY_BIT, _NAMESPACE_FLAGS | _PARENT_FLAG, _ERRNO | errno.EPERM)
    )
    # The kernel reads both words as 32 bits, as the filter does.
    for call, words in (
        (_IOCTL[machine], (*_TERMINAL_INJECTION, *_SIGNAL_OWNER)),
        (_FCNTL[machine], tuple(DENIED_FCNTL.values())),
    ):
        steps = [step for word in words for step in _when(_IF_EQUAL, word, _ERRNO | errno.EPERM)]
        program += _for_call(call, _ARG1, steps)
    program += _keep_limits(machine)
    program += _hide_page_cache(machine)
    for call in (_SOCKET[machine], _SOCKETPAIR[machine]):
        families = [step for family in _SOCKET_FAMILIES for step in _when(_IF_EQUAL, family, _ALLOW)]
        program += _for_call(call, _ARG0, [*families, _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT)])
    program.append(_op(_RETURN, _ALLOW))
    return b"".join(program)


def _keep_limits(machine: str) -> list[bytes]:
    """Refuse to change the limit for core dumps: its value, one byte, keeps the host's dump handler from running.

    Refuse prlimit on other processes, too. Reading a process's own limits by prlimit, with a null pointer for the new
    value, is allowed.
    """
    refuse = _op(_RETURN, _ERRNO | errno.EPERM)
    setting = _for_call(_SETRLIMIT[machine], _ARG0, [_op(_IF_EQUAL, _RLIMIT_CORE, 0, 1), refuse])
    checks = [
        _op(_IF_EQUAL, 0, 1, 0), refuse,  # the process: 0 is the caller
        _op(_LOAD, _ARG1), _op(_IF_EQUAL, _RLIMIT_CORE, 1, 0), _op(_RETURN, _ALLOW),
        _op(_LOAD, _ARG2), _op(_IF_EQUAL, 0, 1, 0), refuse,  # both halves of the pointer
        _op(_LOAD, _ARG2 + 4), _op(_IF_EQUAL, 0, 1, 0), refuse,
    ]  # fmt: skip
    return setting + _for_call(_PRLIMIT[machine], _ARG0, checks)


def _hide_page_cache(machine: str) -> list[bytes]:
    """Refuse the flags of preadv2 and pwritev2, since RWF_NOWAIT reveals cached pages; older kernels lack them, too.

    Refuse the advice that evicts pages from memory, too.
    """
    no_flags = [_op(_IF_EQUAL, 0, 1, 0), _op(_RETURN, _ERRNO | errno.EOPNOTSUPP)]
    keep = _for_call(_FADVISE64[machine], _ARG3, _when(_IF_EQUAL, _POSIX_FADV_DONTNEED, _ERRNO | errno.EPERM))
    keep += _for_call(_MADVISE[machine], _ARG2, _when(_IF_EQUAL, _MADV_PAGEOUT, _ERRNO | errno.EPERM))
    return keep + [step for call in (_PREADV2, _PWRITEV2) for step in _for_call(call[machine], _ARG5, no_flags)]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _when(test: int, value: int, action: int) -> list[bytes]:
    return [_op(test, value, 0, 1), _op(_RETURN, action)]


def _refuse(numbers: list[int]) -> list[bytes]:
    """Refuse the calls of sorted numbers, by binary search: the kernel tries the filter on every number as it loads."""
    if len(numbers) > 4:
        middle = len(numbers) // 2
        low, high = _refuse(numbers[:middle]), _refuse(numbers[middle:])
        return [_op(_IF_AT_LEAST, numbers[middle], len(low) + 1, 0), *low, _op(_JUMP, len(high)), *high]
    tests = [_op(_IF_EQUAL, number, rest, not rest) for rest, number in enumerate(reversed(numbers))]
    return [*reversed(tests), _op(_RETURN, _ERRNO | errno.EPERM)]


def _for_call(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Run `checks` on the low word of `argument` if the call is `number`; without a result the call is allowed."""
    body = [_op(_LOAD, argument), *checks, _op(_RETURN, _ALLOW)]
    return [_op(_IF_EQUAL, number, 0, len(body)), *body]
