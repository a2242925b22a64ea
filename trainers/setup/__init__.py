"""From the command line to a checked config and its plan; nothing is started here.

options/: from the command line to a config. run_plan.py: the plan, which is the config and what follows from it.
placement.py: which process has which GPU. sizing/: the memory of each process, by the formulas of memory.py, and if
the run fits. checks/: mistakes. plan.py makes the plan. describe.py says it in words, for --dry-run and the start of a
run.
"""
