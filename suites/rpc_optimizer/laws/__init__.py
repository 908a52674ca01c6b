"""The laws of contract 1, by subject matter."""
