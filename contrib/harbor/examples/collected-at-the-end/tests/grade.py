"""Output that a hook collects."""

import judge

EXPECTED = {"a": "three\ntwo\none\n", "b": "x\n", "c": "2\n1\n"}
texts = {name: judge.read(f"/logs/artifacts/out/{name}.txt") for name in EXPECTED}
judge.reward(texts == EXPECTED)
