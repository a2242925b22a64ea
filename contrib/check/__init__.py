"""Whether an environment can be trusted: a table of checks that play it, alone and among others, well and badly.

Example::

    report = await run_checks(make("math", level=2))
    for row in report.rows:
        print(row.name, row.ok, row.detail)

If the tasks of an environment are files of others, `run_audit` audits the tasks.
"""

from contrib.check.audit import run_audit
from contrib.check.audit_report import AuditReport, TaskReport
from contrib.check.report import CheckReport, CheckRow, Latency
from contrib.check.runner import run_checks

__all__ = [
    "AuditReport",
    "CheckReport",
    "CheckRow",
    "Latency",
    "TaskReport",
    "run_audit",
    "run_checks",
]
