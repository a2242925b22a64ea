"""Processes that environments start. None of them outlives its owner.

`guard` runs any program and kills what it leaves. `helper` asks a Python library in a confined process, where `worker`
runs it.
"""
