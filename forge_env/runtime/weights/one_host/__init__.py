"""The weight stores of one host: shared memory, and GPU memory that other processes open by CUDA IPC."""
