"""Attacks that leave something behind for whoever comes next: processes, files, names, changed modules."""

from __future__ import annotations

from forge_env.core.sandbox import ExecStatus
from tests.sandboxes.attacks import Attack

OK, NONZERO, SIGNALED = ExecStatus.OK, ExecStatus.NONZERO, ExecStatus.SIGNALED

ATTACKS = [
    Attack(
        number=22,
        name="a daemon that has left its session",
        code="""
def f(host):
    if not os.fork():
        os.setsid()
        libc.prctl(1, 0)  # PR_SET_PDEATHSIG: do not die with the parent
        if not os.fork():
            for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
    return []
""",
    ),
    Attack(
        number=35,
        name="files that Python would load by itself",
        code="""
import sys
def f(host):
    for name in ("sitecustomize.py", "usercustomize.py", "json.py", "math.py", "conftest.py", "x.pth"):
        with open("/tmp/" + name, "w") as file: file.write("raise SystemExit(66)")
    return through(library=lambda: writes(os.path.dirname(os.__file__) + "/sitecustomize.py"),
                   cache=lambda: writes(os.path.dirname(os.__file__) + "/__pycache__/json.pyc"),
                   path=lambda: bool({"", ".", "/tmp"} & set(sys.path)))
""",
    ),
    Attack(
        number=36,
        name="changed modules",
        code="""
import builtins, gc, json, math, sys
math.pi = 3
json.dumps = json.loads = lambda *a, **k: "forged"
builtins.print = builtins.len = builtins.isinstance = lambda *a: 1
sys.modules["re"] = None
gc.set_threshold(1)
os.environ["LEFT"] = "x"
os._exit(0)
""",
    ),
    Attack(
        number=36,
        name="changed machinery of the sandbox itself",
        code="""
import sys
for module in list(sys.modules.values()):
    for name in ("run", "begin", "_finish", "print_exception", "Zygote", "serve", "Lockdown"):
        if hasattr(module, name) and "guest" in str(getattr(module, "__file__", "")):
            setattr(module, name, lambda *a, **k: 0)
os._exit(0)
""",
    ),
    Attack(
        number=37,
        name="shared memory and message queues",
        code="""
def f(host):
    with open("/dev/shm/" + host["marker"], "w") as file: file.write("x")
    return through(memory=lambda: libc.shmget(0x5EC, 4096, 0o1666), semaphores=lambda: libc.semget(0x5EC, 1, 0o1666),
                   messages=lambda: libc.msgget(0x5EC, 0o1666),
                   queue=lambda: libc.mq_open(b"/left", 0o102, 0o666, None))
""",
    ),
    Attack(
        number=0,
        name="every descriptor open, every watch and timer used up",
        code="""
def f(host):
    try:
        while True:
            libc.inotify_init() >= 0 or libc.eventfd(0, 0) >= 0 or libc.timerfd_create(1, 0) >= 0 or os.dup(1)
    except OSError:
        pass
    return []
""",
    ),
    Attack(
        number=0,
        name="descriptors in flight on a socket that nobody reads",
        code="""
def f(host):
    for _ in range(60):
        left, right = socket.socketpair()
        try: socket.send_fds(left, [b"x"], [left.fileno(), right.fileno()] * 60)
        except OSError: break
        left.close()
        right.close()
    return []
""",
    ),
    Attack(
        number=0,
        name="a lock, a lease and a name that the next one would need",
        code=r"""
import fcntl
def f(host):
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0left")
    server.listen()
    held = open("/bin/sh", "rb")
    through(lock=lambda: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB), lease=lambda: fcntl.fcntl(held, 1024, 1))
    os.fork() or time.sleep(600)
    return []
""",
    ),
    Attack(
        number=0,
        name="another program in its place",
        code="""
def f(host):
    os.execv("/bin/sh", ["sh", "-c", "sleep 600 & exit 0"])
""",
        ends=(NONZERO,),
    ),
    Attack(
        number=0,
        name="a name for the machine",
        code="""
def f(host):
    return through(name=lambda: socket.sethostname("left"), domain=lambda: libc.setdomainname(b"left", 4),
                   sysctl=lambda: writes("/proc/sys/kernel/hostname", b"left"))
""",
    ),
]
