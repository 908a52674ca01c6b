"""The types of devices besides the CPU: CUDA's GPUs, and those that an installed package brings."""
