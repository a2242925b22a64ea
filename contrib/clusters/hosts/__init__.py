"""The hosts of a run: machines on which its processes run, and the watch on each of them."""
