"""What several tests share: the settings of Hypothesis, a home of their own, a tiny model folder, and a launcher."""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.configuration
import pytest
import pytest_asyncio

ROOT = Path(__file__).resolve().parent
HOME = Path(tempfile.mkdtemp(prefix="forge-env-home-"))
"""The home folder while the tests run: what is written there shows, and the user's own stays as it is."""
FIRST = (
    *("tests/system", "tests/trainers/titan", "tests/trainers/run", "tests/forge_env/runtime", "contrib/clusters"),
    *("tests/test_docs.py", "contrib/viewer/tests/browser", "contrib/check"),
)
"""Folders and files with the longest tests. They come first, so that none is left for the end."""
TOGETHER = (
    (
        "tests/system/test_engine",
        "tests/agents/generator/",
        "tests/trainers/families/test_proof",
        "contrib/families/tests/test_proof",
        "contrib/external/tests/served/test_served_engine",
        "contrib/serve/tests/test_answer_parser",
    ),
    (
        "tests/trainers/titan/",
        "tests/trainers/run/test_checkpoint_model",
        "tests/forge_env/runtime/test_weights_shared",
        *("contrib/families/tests/test_gpt_oss", "contrib/families/tests/test_models"),
        *("contrib/families/tests/test_two_ranks", "contrib/clusters/tests/test_weights_nccl"),
    ),
)
"""Files that one worker runs: it alone imports vLLM, or starts the server of tests/helpers/forks.py."""
LEFT = pytest.StashKey[list[str]]()
WRITTEN = "written to the home folder"
HOME_STATUS = 70
"""The exit status of a run that has written to the home folder: tests that pass the second time do not mend that."""
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

# Every run draws the same examples and keeps none; `make nightly` draws new ones, eight times as many, and prints how
# to draw them again.
# An example may take any time, and so may drawing it: on a busy machine, a process may not run for a second.
any_time = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("default", any_time, derandomize=True, database=None, max_examples=25)
hypothesis.settings.register_profile(
    "nightly", any_time, derandomize=False, database=None, max_examples=200, print_blob=True
)
hypothesis.settings.load_profile("default")
hypothesis.configuration.set_hypothesis_home_dir(ROOT / ".cache" / "hypothesis")

os.environ["HOME"] = str(HOME)
# The tensors of the tests are small, and there is one worker for each CPU: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# In each new TMPDIR torch would compile its headers anew, which takes five seconds.
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
# The caches of the Makefile, also where pytest is started without it; compiled modules are one of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if (ROOT / "Makefile").is_file():
    for variable, place in re.findall(r"^export (\w+) \?= \$\(CURDIR\)/(.+)$", (ROOT / "Makefile").read_text(), re.M):
        os.environ.setdefault(variable, str(ROOT / place))


def pytest_configure(config: pytest.Config) -> None:
    """A worker ends at once: to free all that it has imported takes seconds. What is registered first runs last."""
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first; otherwise in the order that they have."""
    items.sort(key=lambda item: _rank(item.path))


@functools.cache
def _rank(path: Path) -> int:
    return next((rank for rank, place in enumerate(FIRST) if path.is_relative_to(ROOT / place)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` a worker is given the tests of one file, or of the files that belong together."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return next((places[0] for places in TOGETHER if scope.startswith(places)), scope)

        def remove_node(self, node: Any) -> str | None:
            # The finished files of a worker that has died would come again, empty: who gets one waits for ever.
            work = self.assigned_work[node]
            for scope in [scope for scope, tests in work.items() if all(tests.values())]:
                del work[scope]
            return super().remove_node(node)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off the modules and the items: it goes through them all in every full collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # with the little that is garbage: to look for it takes as long as to go through all of them
        atexit.register(gc.unfreeze)  # the interpreter frees them at its end, and no library complains of a leak


@pytest.fixture(scope="module", autouse=True)
def _frozen_files() -> Iterator[None]:
    """What a file leaves for good, such as the modules of vLLM, is kept off the garbage collector too."""
    yield
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that has written to the home folder has failed, and names what it left; each worker has its own.

    The compiled kernels that a GPU's driver keeps there are its own.
    """
    files = (path.relative_to(HOME) for path in HOME.rglob("*") if not path.is_dir())
    left = sorted(str(path) for path in files if path.parts[0] != ".nv")
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[WRITTEN] = left
        shutil.rmtree(HOME, ignore_errors=True)  # its end runs nothing that was registered before
        return
    left += session.config.stash.get(LEFT, [])
    if left:
        session.exitstatus = HOME_STATUS
    session.config.stash[LEFT] = left


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker of pytest-xdist has found in its home folder."""
    left = getattr(node, "workeroutput", {}).get(WRITTEN, [])
    node.config.stash[LEFT] = node.config.stash.get(LEFT, []) + left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for path in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"error: the tests have written ~/{path}", red=True)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3 whose tokenizer knows the text of the math environment."""
    from forge_env.core.types import EpisodeLimits
    from forge_env.rollout.factory import make
    from trainers.model.make import make_model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    asyncio.run(make_model(folder, make("math"), seed=0, limits=EpisodeLimits()))
    return folder


@pytest_asyncio.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[Any]:
    """An open Launcher, whose logs lie in the test's own folder; it tells nobody of deaths."""
    from forge_env.runtime.launcher import Launcher

    async with Launcher(tmp_path / "logs", say=lambda text: None) as opened:
        yield opened
