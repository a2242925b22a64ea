"""Statuses of executions, the reading of what a guest says, and warm slots."""

from __future__ import annotations

from benchmarks.mutation.source import Mutant

NAMESPACE = ("test_namespace.py", "test_attacks.py")
SESSION = ("test_session.py", "test_attacks.py")
WIRE = ("test_docker_wire.py",)
SLOTS = ("test_warm_slots.py",)

MUTANTS = (
    Mutant(
        name="a call without a value is OK",
        function="Execution._status",
        old="ExecStatus.OK if request.call is None or value is not None else ExecStatus.NONZERO",
        new="ExecStatus.OK",
        tests=NAMESPACE,
    ),
    Mutant(
        name="a flood is an ordinary end",
        function="Execution._status",
        old="self._stdout.flooded or self._stderr.flooded or self._report.flooded",
        new="self._report.flooded",
        tests=NAMESPACE,
    ),
    Mutant(
        name="an exit by itself is what the guest claims",
        function="Execution._status",
        old="return claims.get(self._report.data[-1:], ExecStatus.NONZERO)",
        new="return claims.get(self._report.data[-1:], ExecStatus.OK)",
        tests=NAMESPACE,
    ),
    Mutant(
        name="every kill is a time-out",
        function="Execution._signal_status",
        old="number == signal.SIGKILL and cpu_s >= whole_cpu_s(self._limits)",
        new="number == signal.SIGKILL",
        tests=NAMESPACE,
    ),
    Mutant(
        name="a kill at the deadline is a signal of the program's own",
        function="Execution._signal_status",
        old="if out_of_cpu or (number == signal.SIGKILL and self._timed_out)",
        new="if out_of_cpu",
        tests=NAMESPACE,
    ),
    Mutant(
        name="a value comes with an execution that failed",
        function="Execution._result",
        old="value if status is ExecStatus.OK else None",
        new="value",
        tests=NAMESPACE,
    ),
    Mutant(
        name="a set-up that failed is the program's fault",
        function="Execution._setup_error",
        old='self._report.data.startswith(b"E")',
        new='self._report.data.startswith(b"?")',
        tests=NAMESPACE,
    ),
    Mutant(
        name="a text that is no JSON is a value",
        function="_value",
        old="len(report) == 6 + length and _is_json(text)",
        new="len(report) == 6 + length",
        tests=NAMESPACE,
    ),
    Mutant(
        name="an answer to another request is taken",
        function="_parse",
        old="answered != number or ",
        new="",
        tests=SESSION,
    ),
    Mutant(
        name="CPU time may be negative or infinite",
        function="_parse",
        old="not math.isfinite(cpu_s) or cpu_s < 0 or ",
        new="",
        tests=SESSION,
    ),
    Mutant(
        name="an output of just the limit is cut",
        function="CappedPipe.truncated",
        old="self._total > self._cap",
        new="self._total >= self._cap",
        tests=NAMESPACE,
    ),
    Mutant(
        name="an output is kept beyond its limit",
        function="CappedPipe._read",
        old="chunk[: max(0, self._cap - len(self._kept))]",
        new="chunk",
        tests=NAMESPACE,
    ),
    Mutant(
        name="texts that do not fill the body are taken",
        function="_texts",
        old="sum(size or 0 for size in sizes) != len(body)",
        new="sum(size or 0 for size in sizes) > len(body)",
        tests=WIRE,
    ),
    Mutant(
        name="sizes may be negative",
        function="_texts",
        old="type(size) is int and size >= 0",
        new="type(size) is int",
        tests=WIRE,
    ),
    Mutant(
        name="a container's values are not checked",
        function="_checked",
        old="if not _CHECKS[str(field.type)](value)",
        new="if False",
        tests=WIRE,
    ),
    Mutant(
        name="a status is whatever the container writes",
        function="result_of",
        old='ExecStatus(values["status"])',
        new="ExecStatus.OK",
        tests=WIRE,
    ),
    Mutant(
        name="a header may be any JSON",
        function="parse_header",
        old="if type(header) is not dict",
        new="if header is None",
        tests=WIRE,
    ),
    Mutant(
        name="slots are started when they are wanted",
        function="WarmSlots._grow",
        old="max(self._warm, 2 * demand)",
        new="max(self._warm, demand)",
        tests=SLOTS,
    ),
    Mutant(
        name="the request that came last is served first",
        function="WarmSlots._longest_waiting",
        old="self._waiting.popleft()",
        new="self._waiting.pop()",
        tests=SLOTS,
    ),
    Mutant(
        name="a slot that is used up is given out again",
        function="WarmSlots.give_back",
        old="if self._is_warm(slot)",
        new="if True",
        tests=SLOTS,
    ),
    Mutant(
        name="a slot without its network is warm",
        function="Execution.left_slot_warm",
        old=" and not self._end.spent",
        new="",
        tests=SLOTS,
    ),
)
