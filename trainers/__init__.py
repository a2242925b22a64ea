"""Trainers: `python -m trainers.grpo`, `python -m trainers.sft`. Nothing heavy is imported here."""

import sys

from trainers.metrics.heartbeat import announce

if sys.argv[:1] == ["-m"]:  # so it is while Python looks for the module of `python -m`: torch takes seconds to import
    announce(sys.orig_argv)
