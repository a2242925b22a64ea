"""Trainers of the tests in this folder."""

from tests.trainers.titan.conftest import make

__all__ = ["make"]
