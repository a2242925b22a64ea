"""Checks of a config before anything starts. Each mistake is one sentence: what is wrong, the value, what is allowed.

`make_plan` calls the checks and lists their sentences; a start raises the first one.
"""
