"""What one process of a run does for itself: its end, its rank, its network addresses, GPUs, caches and files."""
