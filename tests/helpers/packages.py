"""Tests of what needs a package that may be missing."""

from __future__ import annotations

import importlib.util

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where a package is not installed.

    Unlike `pytest.importorskip` it does not import the package, so that the workers that do not run these tests do not
    wait for the import either.
    """
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"could not import {package!r}: it is not installed")
