"""Parts of one process of a run: its end, its rank, its network addresses, GPUs, caches and files."""
