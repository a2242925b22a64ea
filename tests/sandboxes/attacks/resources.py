"""Attacks that take more than their share: processes, memory, files, time, output."""

from __future__ import annotations

from dataclasses import replace

from forge_env.core.sandbox import ExecStatus
from tests.sandboxes.attacks import LONG, SHORT, Attack

OK, NONZERO, SIGNALED = ExecStatus.OK, ExecStatus.NONZERO, ExecStatus.SIGNALED
TIMEOUT, MEMORY, PIDS, FLOOD = ExecStatus.TIMEOUT, ExecStatus.MEMORY, ExecStatus.PIDS, ExecStatus.OUTPUT_LIMIT
SMALL_FILES = replace(LONG, file_bytes=4 * 2**20, tmp_bytes=8 * 2**20)

ATTACKS = [
    Attack(number=1, name="fork bomb", code="while True: os.fork()", ends=(PIDS,)),
    Attack(
        number=1,
        name="fork bomb that never gives up",
        code="while True:\n    try: os.fork()\n    except OSError: pass",
        ends=(TIMEOUT, PIDS),
        limits=SHORT,
    ),
    Attack(
        number=1,
        name="fork bomb of the shell",
        code="import sys\nsys.exit(os.spawnv(os.P_WAIT, '/bin/sh', ['sh', '-c', 'f() { f | f & wait; }; f']) or 1)",
        ends=(PIDS, NONZERO, TIMEOUT, FLOOD),
        limits=SHORT,
    ),
    Attack(number=2, name="one large allocation", code="x = bytearray(1 << 31)", ends=(MEMORY,)),
    Attack(number=2, name="a list that grows", code="x = []\nwhile True: x.append(' ' * 10**6)", ends=(MEMORY,)),
    Attack(
        number=2,
        name="many processes that are each within the limit",
        code="""
for _ in range(6):
    if not os.fork():
        x = bytearray(40 << 20)
        signal.pause()
time.sleep(60)
""",
        ends=(MEMORY, TIMEOUT),
        limits=SHORT,
        counted=True,
    ),
    Attack(
        number=0,
        name="shared memory, which no limit of the process counts",
        code="import mmap\nx = mmap.mmap(-1, 1 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1",
        ends=(MEMORY,),
        counted=True,
    ),
    Attack(
        number=0,
        name="memory in the buffers of pipes",
        code="""
import fcntl
def f(host):
    held = []
    try:
        while True:
            read_end, write_end = os.pipe()
            os.set_blocking(write_end, False)
            fcntl.fcntl(write_end, 1031, 1 << 20)
            held.append(os.write(write_end, bytes(1 << 20)))
    except OSError:
        pass
    return sum(held) >> 20
""",
        ends=(OK, MEMORY),
        harmless=lambda megabytes: megabytes <= 128,
    ),
    Attack(
        number=0,
        name="memory in the buffers of sockets",
        code="""
def f(host):
    held, size = [], 0
    try:
        while True:
            pair = socket.socketpair()
            held.append(pair)
            pair[0].setblocking(False)
            pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
            try:
                while True: size += pair[0].send(bytes(1 << 16))
            except BlockingIOError: pass
    except OSError:
        pass
    return size >> 20
""",
        ends=(OK, MEMORY),
        harmless=lambda megabytes: megabytes <= 128,
        counted=True,
    ),
    Attack(
        number=3,
        name="fill /tmp, with bytes and with empty files",
        code="""
def f(host):
    size = files = 0
    try:
        for number in range(100):
            with open(f"/tmp/big{number}", "wb", buffering=0) as file:
                for _ in range(4): size += file.write(bytes(1 << 20))
    except OSError: pass
    for number in range(100): os.path.exists(f"/tmp/big{number}") and os.unlink(f"/tmp/big{number}")
    try:
        for files in range(10**6): open(f"/tmp/{files}", "w").close()
    except OSError: pass
    return size, files
""",
        harmless=lambda got: got[0] <= 8 * 2**20 and got[1] < 10**5,
        limits=SMALL_FILES,
    ),
    Attack(
        number=4,
        name="a sparse file of a terabyte",
        code="""
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def f(host):
    fd = os.open("/tmp/sparse", os.O_RDWR | os.O_CREAT)
    return through(truncate=lambda: os.ftruncate(fd, 1 << 40), write=lambda: os.pwrite(fd, b"x", 1 << 40),
                   allocate=lambda: os.posix_fallocate(fd, 0, 1 << 30))
""",
        limits=SMALL_FILES,
    ),
    Attack(
        number=0,
        name="folders too deep to be removed by a path",
        code="""
def f(host):
    for _ in range(2000):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    return []
""",
        limits=LONG,
    ),
    Attack(
        number=23,
        name="ignore every signal and every exception",
        code="""
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try: time.sleep(1)
    except BaseException: pass
""",
        ends=(TIMEOUT,),
        limits=SHORT,
    ),
    Attack(number=24, name="hold the interpreter lock", code="10 ** 10 ** 8", ends=(TIMEOUT,), limits=SHORT),
    Attack(
        number=24,
        name="a regular expression that explodes",
        code="import re; re.match('(a+)+$', 'a' * 60 + 'b')",
        ends=(TIMEOUT,),
        limits=SHORT,
    ),
    Attack(number=25, name="sleep for ever", code="time.sleep(1e9)", ends=(TIMEOUT,), limits=SHORT),
    Attack(
        number=25, name="wait for ever", code="import select; select.select([], [], [])", ends=(TIMEOUT,), limits=SHORT
    ),
    Attack(number=0, name="stop itself", code="os.kill(os.getpid(), signal.SIGSTOP)", ends=(TIMEOUT,), limits=SHORT),
    Attack(
        number=0,
        name="never finish finishing",
        code="import atexit\n@atexit.register\ndef spin():\n    while True: pass",
        ends=(TIMEOUT,),
        limits=SHORT,
    ),
    Attack(
        number=0,
        name="a thread that is never joined",
        code="import threading; threading.Thread(target=lambda: time.sleep(1e6)).start()",
        ends=(TIMEOUT,),
        limits=SHORT,
    ),
    Attack(number=26, name="flood of output", code="while True: print('x' * 10**6)", ends=(FLOOD,)),
    Attack(number=26, name="flood of errors", code="while True: os.write(2, b'x' * 65536)", ends=(FLOOD,)),
    Attack(
        number=27,
        name="one line without an end",
        code="import sys\nfor _ in range(10**4): sys.stdout.write('x' * 10**6)",
        ends=(FLOOD,),
    ),
    Attack(
        number=27,
        name="bytes that are no text",
        code=r"os.write(1, bytes(range(256)) + b'\x1b[2J\x00\xed\xa0\x80\xff'); print('\ud800')",
        ends=(OK, NONZERO),
    ),
    Attack(
        number=0,
        name="a background process that floods while the snippet has ended",
        code="if not os.fork():\n    os.setsid()\n    while True: os.write(1, b'x' * 65536)",
        ends=(OK, FLOOD),
    ),
    Attack(
        number=0,
        name="an exception with an endless text and an endless chain",
        code="""
error = None
for number in range(20000):
    new = ValueError("x" * 1000)
    new.__cause__ = error
    error = new
raise error
""",
        ends=(NONZERO, SIGNALED, MEMORY, FLOOD, TIMEOUT),
        limits=SHORT,
    ),
    Attack(
        number=38,
        name="recursion without an end",
        code="import sys\nsys.setrecursionlimit(10**9)\ndef g(): g()\ng()",
        ends=(NONZERO, SIGNALED, MEMORY, TIMEOUT),
        limits=SHORT,
    ),
    Attack(number=38, name="crash", code="ctypes.string_at(0)", ends=(SIGNALED,)),
    Attack(
        number=38,
        name="code that is nested too deeply to compile",
        code="compile('(' * 10**5 + ')' * 10**5, 'x', 'exec')",
        ends=(NONZERO, SIGNALED, MEMORY),
    ),
    Attack(
        number=39,
        name="core dump, also of a program that is dumpable again",
        code="""
import resource
def f(host):
    lowered = through(lower=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    if not os.fork():
        os.execv("/bin/sh", ["sh", "-c", "kill -SEGV $$"])
    status = os.wait()[1]
    return lowered + [name for name in os.listdir("/tmp") if "core" in name] + ["dumped"] * os.WCOREDUMP(status)
""",
    ),
    Attack(
        number=42,
        name="raise the own limits",
        code="""
import resource
def f(host):
    found = []
    for name in ("AS", "DATA", "NPROC", "NOFILE", "FSIZE", "CORE", "MEMLOCK", "MSGQUEUE", "RTPRIO", "NICE"):
        kind = getattr(resource, "RLIMIT_" + name, None)
        if kind is None: continue
        _, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY: continue
        found += through(**{name: lambda: resource.setrlimit(kind, (hard + 1, hard + 1))})
    return found
""",
    ),
    Attack(
        number=43,
        name="sixty threads and a better priority",
        code="""
import threading
def f(host):
    class Parameters(ctypes.Structure): _fields_ = [("priority", ctypes.c_int)]
    def spin():
        while True: pass
    for _ in range(60):
        try: threading.Thread(target=spin, daemon=True).start()
        except RuntimeError: break
    return through(
        nice=lambda: os.setpriority(os.PRIO_PROCESS, 0, -20),
        realtime=lambda: libc.sched_setscheduler(0, 1, ctypes.byref(Parameters(50))),
        io=lambda: libc.syscall(host["calls"]["ioprio_set"], 1, 0, 1 << 13),
        lock=lambda: libc.mlockall(3),
    )
""",
        ends=(OK, TIMEOUT),
    ),
    Attack(
        number=0,
        name="make the kernel kill ours when memory runs out",
        code="""
def f(host):
    libc.prctl(4, 1)  # PR_SET_DUMPABLE: so that its files in /proc are its own again
    through(score=lambda: writes("/proc/self/oom_score_adj"))
    if not os.fork():
        os.execv("/bin/sh", ["sh", "-c", "echo 0 > /proc/self/oom_score_adj; x=x; while :; do x=$x$x; done"])
    import mmap
    held = mmap.mmap(-1, 1 << 30)
    for start in range(0, len(held), 4096): held[start] = 1
    return ["held a gigabyte"]
""",
        # A shared mapping is freed only when its holder has ended. On a loaded machine the kernel may not wait for
        # that: it then kills what else is in the control group, the helper of the place too. In a container that is the
        # agent: the run is a fault.
        ends=(MEMORY,),
        takes_container=True,
        counted=True,
    ),
]
