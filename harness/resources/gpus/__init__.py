"""The GPUs of the host: found without CUDA, and leased to worlds."""
