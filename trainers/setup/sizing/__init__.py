"""The memory of each process of a run, the size of the engine's cache, and whether a run fits on its GPUs."""
