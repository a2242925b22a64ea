"""The sinks of a run's metrics, one file each, and the measurements of the machine."""
