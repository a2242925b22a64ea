"""Episodes to padded or packed micro-batches."""
