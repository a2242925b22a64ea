"""Reads what was submitted, and writes the reward. The same file in every task."""

import json


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(2**20)
    except OSError:
        return ""


def reward(value, **more):
    with open("/logs/verifier/reward.json", "w") as file:
        json.dump({"reward": float(value), **more}, file)
