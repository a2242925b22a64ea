"""Processes that environments start, none of which outlives its owner.

`guard` runs any program and kills what it leaves. `helper` asks a Python library in a confined process, where `worker`
runs it.
"""
