"""Whether an environment can be trusted: a table of checks that play it, alone and among others, well and badly.

Example::

    report = await run_checks(make("math", level=2))
    for row in report.rows:
        print(row.name, row.ok, row.detail)
"""

from forge_env.check.report import CheckReport, CheckRow, Latency
from forge_env.check.runner import run_checks

__all__ = ["CheckReport", "CheckRow", "Latency", "run_checks"]
