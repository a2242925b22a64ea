"""From the command line to a checked config and its plan; nothing is started here.

entry.py: the way in. options/: from the command line to a config. draft.py: the config, and what follows from it.
placement.py: which process has which GPU. sizing/: the memory of each process, by the formulas of memory.py, and if
the run fits. checks/: mistakes. plan.py: makes run_plan.py's RunPlan, a draft with sizes. describe.py says it in words,
for --dry-run and the start of a run.
"""
