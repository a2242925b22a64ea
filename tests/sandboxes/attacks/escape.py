"""Attacks that try to get out: to files, processes, the network and the kernel of the host."""

from __future__ import annotations

from forge_env.core.sandbox import ExecStatus
from tests.sandboxes.attacks import SHORT, Attack

OK, NONZERO, SIGNALED, TIMEOUT = ExecStatus.OK, ExecStatus.NONZERO, ExecStatus.SIGNALED, ExecStatus.TIMEOUT

ATTACKS = [
    Attack(
        number=5,
        name="read files of the host",
        code="""
def f(host):
    paths = [host["secret"], host["repository"], "/etc/shadow", "/etc/passwd", os.path.join("/", "root", ".ssh"),
             "/home", "/sys/kernel", "/boot", "/dev/sda", "/dev/vda", "/dev/mem", "/dev/kmsg", "/proc/kcore",
             "/proc/sysrq-trigger"]
    return [path for path in paths if os.access(path, os.R_OK) and (os.path.isfile(path) or os.listdir(path))]
""",
    ),
    Attack(
        number=6,
        name="read environments and command lines",
        code="""
def f(host):
    found = [name for name, value in os.environ.items() if host["marker"] in name + value]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                text = open(f"/proc/{pid}/{name}", "rb").read()
            except OSError:
                continue
            found += [f"{pid}/{name}"] * (host["marker"].encode() in text or b"pytest" in text)
    return found
""",
    ),
    Attack(
        number=7,
        name="reach the network",
        code="""
def f(host):
    def tcp(address, port): return lambda: socket.create_connection((address, port), timeout=2)
    def udp(address): return lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (address, 53))
    return through(loopback=tcp("127.0.0.1", host["port"]), metadata=tcp("169.254.169.254", 80),
                   outside=tcp("192.0.2.1", 80), dns=udp("192.0.2.1"), gateway=tcp("172.17.0.1", 2375),
                   broadcast=udp("255.255.255.255"), name=lambda: socket.getaddrinfo("example.com", 80))
""",
    ),
    Attack(
        number=8,
        name="open sockets of other families",
        code="""
def f(host):
    # NETLINK, PACKET, ALG, VSOCK, BLUETOOTH, CAN, KEY, XDP, TIPC
    return [family for family in (16, 17, 38, 40, 31, 29, 15, 44, 30)
            if through(open=lambda: socket.socket(family, socket.SOCK_RAW))
            or through(open=lambda: socket.socket(family, socket.SOCK_DGRAM))
            or through(open=lambda: socket.socket(family, socket.SOCK_SEQPACKET))]
""",
    ),
    Attack(
        number=9,
        name="abstract socket of the host",
        code=r"""
def f(host):
    return through(connect=lambda: socket.socket(socket.AF_UNIX).connect("\0" + host["abstract"]))
""",
    ),
    Attack(
        number=10,
        name="sockets of engines, and descriptors that were left open",
        code="""
import stat
def f(host):
    paths = ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock",
             "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/podman/podman.sock"]
    left = []
    for fd in range(3, 4096):
        try: mode = os.fstat(fd).st_mode
        except OSError: continue
        left += [f"{fd}: {stat.filemode(mode)}"] * (fd != 3 or not stat.S_ISFIFO(mode))
    return [path for path in paths if os.path.lexists(path)] + left
""",
    ),
    Attack(
        number=11,
        name="kill what there is to kill",
        code="""
def f(host):
    for pid in (os.getppid(), 1, host["pid"], -host["pid"]):
        through(kill=lambda: os.kill(pid, signal.SIGKILL))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    through(all=lambda: os.kill(-1, signal.SIGTERM))
    return []
""",
        ends=(OK, SIGNALED),
    ),
    Attack(number=11, name="kill its own group", code="os.kill(0, 9)", ends=(SIGNALED,)),
    Attack(
        number=11,
        name="kill everything",
        code="os.kill(-1, 9); time.sleep(60)",
        ends=(NONZERO, SIGNALED, TIMEOUT),  # where there is nobody else to kill, the call fails
        limits=SHORT,
    ),
    Attack(
        number=0,
        name="kill and change init by descriptor",
        code="""
def f(host):
    def send():
        fd = os.pidfd_open(1)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        return os.path.isdir("/proc/1") and False
    limit = (ctypes.c_ulong * 2)(0, 0)
    return through(signal=send, limit=lambda: libc.prlimit(1, 7, ctypes.byref(limit), None),
                   steal=lambda: libc.syscall(438, os.pidfd_open(1), 0, 0), nice=lambda: os.setpriority(0, 1, 19) or 0)
""",
    ),
    Attack(
        number=12,
        name="trace and read other processes",
        code="""
def f(host):
    parts = (ctypes.c_void_p * 2)(0x400000, 8)
    return through(attach=lambda: libc.ptrace(16, 1, 0, 0), seize=lambda: libc.ptrace(0x4206, 1, 0, 0),
                   traceme=lambda: libc.ptrace(0, 0, 0, 0),
                   readv=lambda: libc.process_vm_readv(1, parts, 1, parts, 1, 0),
                   writev=lambda: libc.process_vm_writev(1, parts, 1, parts, 1, 0),
                   mem=lambda: os.open("/proc/1/mem", os.O_RDONLY), root=lambda: bool(os.listdir("/proc/1/root")),
                   cwd=lambda: bool(os.listdir("/proc/1/cwd")), fds=lambda: bool(os.listdir("/proc/1/fd")),
                   map=lambda: os.open("/proc/1/pagemap", os.O_RDONLY))
""",
    ),
    Attack(
        number=13,
        name="mount, the old way and the new",
        code="""
def f(host):
    return through(mount=lambda: libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None),
                   proc=lambda: libc.mount(b"proc", b"/tmp", b"proc", 0, None),
                   remount=lambda: libc.mount(None, b"/", None, 32 | 4096, None),
                   umount=lambda: libc.umount2(b"/proc", 2),
                   pivot=lambda: libc.pivot_root(b"/tmp", b"/tmp"), tree=lambda: libc.syscall(428, -100, b"/", 1),
                   move=lambda: libc.syscall(429, -100, b"/tmp", -100, b"/", 0),
                   open=lambda: libc.syscall(430, b"tmpfs", 0),
                   attributes=lambda: libc.syscall(442, -100, b"/", 0x8000, bytes(32), 32))
""",
    ),
    Attack(
        number=14,
        name="new namespaces",
        code="""
def f(host):
    clone = host["calls"]["clone"]
    flags = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "mount": 0x20000, "uts": 0x4000000,
             "ipc": 0x8000000, "cgroup": 0x2000000, "time": 0x80}
    found = through(**{"unshare " + name: lambda flag=flag: libc.unshare(flag) for name, flag in flags.items()})
    found += through(**{"clone " + name: lambda flag=flag: libc.syscall(clone, flag | 17, 0, 0, 0, 0)
                        for name, flag in flags.items() if name != "time"})
    arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
    return found + through(clone3=lambda: libc.syscall(435, arguments, 88),
                           setns=lambda: libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0))
""",
    ),
    Attack(
        number=0,
        name="give its children to the zygote",
        code="""
def f(host):
    pid = libc.syscall(host["calls"]["clone"], 0x8000 | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(7)
    return ["CLONE_PARENT"] if pid > 0 else []
""",
    ),
    *(
        Attack(number=number, name=name, code=f"def f(host):\\n    return through({calls})".replace("\\n", "\n"))
        for number, name, calls in (
            (
                15,
                "io_uring",
                "setup=lambda: libc.syscall(425, 8, bytes(120)), enter=lambda: libc.syscall(426, 0, 0, 0, 0)",
            ),
            (
                16,
                "keys of the kernel",
                'add=lambda: libc.syscall(host["calls"]["add_key"], b"user", b"x", b"y", 1, -3), '
                'get=lambda: libc.syscall(host["calls"]["keyctl"], 0, -3, 0), '
                'request=lambda: libc.syscall(host["calls"]["request_key"], b"user", b"x", 0, 0)',
            ),
            (
                17,
                "bpf, userfaultfd, perf, no address randomisation",
                'bpf=lambda: libc.syscall(host["calls"]["bpf"], 0, bytes(128), 128), '
                'fault=lambda: libc.syscall(host["calls"]["userfaultfd"], 1), '
                'perf=lambda: libc.syscall(host["calls"]["perf_event_open"], bytes(128), 0, -1, -1, 0), '
                "personality=lambda: libc.personality(0x40000)",
            ),
            (
                18,
                "modules, kexec, reboot, swap, kernel log, sysctl",
                'module=lambda: libc.syscall(host["calls"]["init_module"], b"", 0, b""), '
                'kexec=lambda: libc.syscall(host["calls"]["kexec_load"], 0, 0, 0, 0), reboot=lambda: libc.reboot(0), '
                'swap=lambda: libc.swapon(b"/tmp", 0), log=lambda: libc.klogctl(3, bytes(64), 64), '
                'sysrq=lambda: writes("/proc/sysrq-trigger", b"h"), '
                'core=lambda: writes("/proc/sys/kernel/core_pattern", b"|/tmp/x"), '
                'uevent=lambda: writes("/sys/kernel/uevent_helper", b"/tmp/x"), '
                'modprobe=lambda: writes("/proc/sys/kernel/modprobe", b"/tmp/x")',
            ),
            (
                19,
                "leave the root",
                'chroot=lambda: os.chroot("/tmp"), '
                'up=lambda: os.path.exists("/.." + host["repository"]), '
                'handle=lambda: libc.syscall(host["calls"]["open_by_handle_at"], -100, bytes(64), 0), '
                'old=lambda: os.listdir("/old") and 1, '
                'proc=lambda: os.path.exists("/proc/self/root" + host["repository"])',
            ),
            (
                41,
                "change the clock",
                "set=lambda: time.clock_settime(time.CLOCK_REALTIME, 0), "
                "day=lambda: libc.settimeofday(bytes(16), None), adjust=lambda: libc.adjtimex(bytes([1] + [0] * 255)), "
                'offsets=lambda: writes("/proc/self/timens_offsets", b"1 1 1")',
            ),
            (
                42,
                "become another user",
                "uid=lambda: os.setuid(0), gid=lambda: os.setgid(0), groups=lambda: os.setgroups([0]), "
                'res=lambda: os.setresuid(0, 0, 0), su=lambda: os.system("su -c id </dev/null >/dev/null 2>&1") == 0, '
                'map=lambda: writes("/proc/self/uid_map", b"0 0 1"), caps=lambda: libc.prctl(47, 2, 21, 0, 0), '
                'setuid=lambda: bool(os.open("/tmp/s", os.O_CREAT) and os.chown("/tmp/s", 0, 0))',
            ),
            (
                0,
                "write to what it runs from",
                '**{path: lambda path=path: writes(path + "/x") for path in '
                '("/", "/usr", "/usr/bin", "/etc", "/dev", "/proc", "/sys", "/opt", "/var", '
                "os.path.dirname(os.__file__))}, "
                'link=lambda: os.link("/bin/sh", "/tmp/sh") or 0, '
                'node=lambda: os.mknod("/tmp/d", 0o60600, 0x800) or 0, '
                'own=lambda: writes(__import__("ctypes").__file__)',
            ),
            (
                0,
                "inject into a terminal",
                'open=lambda: os.open("/dev/tty", os.O_RDWR), console=lambda: os.open("/dev/console", os.O_RDWR), '
                'sti=lambda: libc.ioctl(1, 0x5412, b"x"), linux=lambda: libc.ioctl(1, 0x541C, b"x"), '
                'high=lambda: libc.syscall(host["calls"]["ioctl"], 1, 0xFFFFFFFF00005412 - (1 << 64), b"x")',
            ),
            (
                0,
                "calls that the filter does not know",
                "**{str(n): lambda n=n: libc.syscall(n, 0, 0, 0, 0) for n in range(463, 1200)}",
            ),
            (
                0,
                "change its input or the request of others",
                'stdin=lambda: os.write(0, b"x"), cut=lambda: os.ftruncate(0, 0), grow=lambda: os.ftruncate(0, 99), '
                'again=lambda: writes("/proc/self/fd/0")',
            ),
            (
                0,
                "send signals to the host by descriptor owner and timer",
                'own=lambda: libc.fcntl(1, 8, host["pid"]), group=lambda: libc.fcntl(1, 8, -host["pid"]), '
                'queue=lambda: libc.sigqueue(host["pid"], 9, 0), '
                'tgkill=lambda: libc.tgkill(host["pid"], host["pid"], 9)',
            ),
        )
    ),
    Attack(
        number=0,
        name="system calls of 32 bits",
        code="""
import mmap, platform, struct
if platform.machine() != "x86_64": os.kill(os.getpid(), signal.SIGSYS)
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
print("got through", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
""",
        ends=(SIGNALED,),
    ),
    Attack(
        number=0,
        name="system calls of the x32 kind",
        code="""
import platform
if platform.machine() != "x86_64": os.kill(os.getpid(), signal.SIGSYS)
print("got through", libc.syscall(0x40000000 + 39))
""",
        ends=(SIGNALED,),
    ),
]
