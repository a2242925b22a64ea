"""The weight store between GPUs that cannot read each other's memory."""
