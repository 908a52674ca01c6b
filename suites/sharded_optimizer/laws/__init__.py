"""The laws of contract 2, by subject matter."""
