"""Checks of a run before anything starts. Each mistake is one sentence: what is wrong, the value, what is allowed.

A section checks its own settings (`check` of its class). The checks here are of several sections, of the model and of
the machine. `make_plan` calls them and lists their sentences; a start raises the first one.
"""
