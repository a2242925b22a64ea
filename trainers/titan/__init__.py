"""The trainer on TorchTitan: the only folder that imports it. `trainer.py` is the way in."""
