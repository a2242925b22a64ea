"""Mutation testing of fourteen modules by cosmic-ray: which changes of an operator or a number does no test notice?

    python -m benchmarks.mutants [--jobs 2]                                 # writes benchmarks/results/mutants.txt
    python -m benchmarks.mutants --only ledger                              # writes nothing
    python -m benchmarks.mutants --compare benchmarks/results/mutants.txt   # exit code 1 if fewer are noticed

Each module is mutated in a temporary copy of the tree. uv runs cosmic-ray in an environment of its own, so that none of
its dependencies is one of ours. Of a module's mutants every k-th is tried, at most 40. Left out are those of `|`, which
most annotations have, and those of `is`, except for its negation. The id of a mutant is its operator and the number of
the place that the operator changes: edits of other lines do not change the id.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.txt"
COSMIC_RAY = "cosmic-ray==8.7.0"
MOST = 40
MEMORY_KIB = 8 * 2**20  # a mutant may fill a list for ever
NEGATED = ("_Is_IsNot", "_IsNot_Is")
MODULES = {
    "agents/renderer/dialects/bodies.py": "tests/agents/renderer/test_dialects.py",
    "envs/math/answers.py": "tests/envs/math/test_math_answers.py -k 'not helper and not too_long'",
    "envs/math/latex.py": "tests/envs/math/test_math_answers.py -k 'not helper and not too_long'",
    "envs/math/numerals.py": "tests/envs/math/test_math_answers.py -k 'not helper and not too_long'",
    "envs/math/shapes.py": "tests/envs/math/test_math_answers.py -k 'not helper and not too_long'",
    "forge_env/core/episode.py": "tests/forge_env/core/test_episode.py tests/forge_env/core/test_routes.py",
    "forge_env/tool_env/rubric.py": "tests/forge_env/tool_env/test_rubric.py",
    "forge_env/utils/statistics.py": "tests/forge_env/utils/test_statistics.py",
    "sandboxes/settings.py": "tests/sandboxes/test_settings.py",
    "trainers/batching/packing.py": "tests/trainers/batching/test_packing.py tests/trainers/batching/test_shares.py",
    "trainers/controller/ledger.py": "tests/trainers/controller/test_ledger.py",
    "trainers/controller/schedule.py": "tests/trainers/controller/test_schedule.py",
    "trainers/objective/credit.py": "tests/trainers/objective/test_credit.py",
    "trainers/objective/loss_terms.py": "tests/trainers/objective/test_loss_terms.py "
    "tests/trainers/objective/test_loss_base.py",
}


def measure(module: str) -> str:
    """The lines of one module: its counts, then one survivor a line.

    Raises:
        SystemExit: when its tests fail without any mutant, or cosmic-ray fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree, session, config = Path(folder, "tree"), Path(folder, "session.sqlite"), Path(folder, "config.toml")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", ".cache", "outputs", "__pycache__"))
        compiled = f"{Path(module).parent}/__pycache__/{Path(module).stem}.*"
        # Two mutants of one second may have one size, and then Python takes the compiled module of the first.
        pytest = f"{sys.executable} -m pytest -x -q -o cache_dir={folder}/cache "
        run = f"rm -f {compiled}; ulimit -v {MEMORY_KIB}; PYTHONPATH={tree} exec {pytest}"
        command = f"sh -c {shlex.quote(run + MODULES[module])}"
        started = time.monotonic()
        plain = subprocess.run(command, shell=True, cwd=tree, capture_output=True, text=True)
        if plain.returncode:
            raise SystemExit(f"the tests of {module} fail without any mutant: {plain.stdout[-500:]}{plain.stderr}")
        limit = 10.0 + 3 * (time.monotonic() - started)  # a mutant that loops for ever is killed
        settings = {"module-path": module, "timeout": limit, "excluded-modules": [], "test-command": command}
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        config.write_text(f'[cosmic-ray]\n{lines}[cosmic-ray.distributor]\nname = "local"\n', encoding="utf-8")
        for step in ("init", "exec"):
            cosmic_ray = [sys.executable, "-m", "uv", "tool", "run", "--quiet", "--from", COSMIC_RAY, "cosmic-ray"]
            ended = subprocess.run([*cosmic_ray, step, config, session], cwd=tree, capture_output=True, text=True)
            if ended.returncode:
                raise SystemExit(f"cosmic-ray {step} of {module} failed: {ended.stderr[-500:]}")
            if step == "init":
                total, every = choose(session)
        order = "FROM mutation_specs NATURAL JOIN work_results ORDER BY start_pos_row, operator_name, occurrence"
        with sqlite3.connect(session) as db:
            tried = db.execute(f"SELECT start_pos_row, operator_name, occurrence, test_outcome {order}").fetchall()
    alive = [f"    {line:4} {name} {place}\n" for line, name, place, outcome in tried if outcome == "SURVIVED"]
    text = f"{module} | {total} mutants, every {every}. | {len(tried) - len(alive)} of {len(tried)} killed\n"
    print(text + "".join(alive), end="", flush=True)
    return text + "".join(alive)


def choose(session: Path) -> tuple[int, int]:
    """Leave every k-th mutant in the session; returns how many there were, and k."""
    with sqlite3.connect(session) as db:
        order = "ORDER BY start_pos_row, start_pos_col, operator_name, occurrence"
        rows = db.execute(f"SELECT job_id, operator_name FROM mutation_specs {order}").fetchall()
        jobs = [job for job, name in rows if "BitOr" not in name and ("_Is" not in name or name.endswith(NEGATED))]
        every = -(-len(jobs) // MOST)
        left_out = {job for job, _ in rows} - set(jobs[::every])
        for table in ("mutation_specs", "work_items"):
            db.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(job,) for job in left_out])
    return len(jobs), every


def read(text: str) -> dict[str, tuple[str, str, set[str]]]:
    """Of each module: its mutants with k, its counts, and the ids of its survivors."""
    found: dict[str, tuple[str, str, set[str]]] = {}
    for line in text.splitlines():
        if " | " in line:
            module, mutants, counts = line.split(" | ")
            found[module] = (mutants, counts, set())
        elif line.startswith("    "):
            found[module][2].add(line.split(maxsplit=1)[1])
    return found


def compare(before: str, now: str) -> int:
    """Print what was killed before and is not now; returns 1 when there is any. A module that has changed is named."""
    old, lost = read(before), 0
    for module, (mutants, counts, alive) in read(now).items():
        mutants_before, counts_before, alive_before = old.get(module, ("none", "none", set()))
        if mutants != mutants_before:
            print(f"not the same mutants as before: {module}: {counts_before}, now {counts}")
            continue
        for name in sorted(alive - alive_before):
            print(f"killed before and not now: {module} {name}")
            lost = 1
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="modules at the same time")
    parser.add_argument("--only", default="", help="modules with this in their path; writes nothing")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier result; writes nothing")
    options = parser.parse_args()
    before = options.compare.read_text(encoding="utf-8") if options.compare else None
    started = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        texts = list(pool.map(measure, [module for module in MODULES if options.only in module]))
    print(f"{time.monotonic() - started:.0f} s")
    if before is not None:
        return compare(before, "".join(texts))
    if not options.only:
        RESULTS.write_text("".join(texts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
