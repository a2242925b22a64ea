"""Servers of the Open Reward Standard as environments, `ors:URL`. Source: https://openrewardstandard.io."""
