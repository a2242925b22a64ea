"""A server on the loopback."""

import subprocess
import time
import urllib.error
import urllib.request

import judge


def get(path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:8123{path}", timeout=5) as answer:
            return answer.status, answer.read(100).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError):
        return None


server = subprocess.Popen(
    ["python3", "-I", "/app/server.py", "8123"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    user=65534,
    group=65534,
    extra_groups=[],
)
deadline = time.monotonic() + 15
while get("/") is None and server.poll() is None and time.monotonic() < deadline:
    time.sleep(0.05)
CASES = (("/double/21", (200, "42")), ("/double/-4", (200, "-8")), ("/double/x", (404, "")), ("/", (404, "")))
results = [get(path) for path, _ in CASES] if server.poll() is None else []
server.kill()
judge.reward(results == [expected for _, expected in CASES])
