"""Whether an environment can be trusted: a table of checks that play it, alone and among others, well and badly.

Example::

    report = await run_checks(make("math", level=2))
    for row in report.rows:
        print(row.name, row.ok, row.detail)

If the tasks of an environment are files of others, `run_audit` audits the tasks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrib.check.audit import run_audit
    from contrib.check.report import AuditReport
    from contrib.check.runner import run_checks

_MODULE_OF = {"AuditReport": "report", "run_audit": "audit", "run_checks": "runner"}
__all__ = ["AuditReport", "run_audit", "run_checks"]


def __getattr__(name: str) -> Any:
    """Import the module of a name when it is used: `forge-env --help` loads the command of this folder only."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
