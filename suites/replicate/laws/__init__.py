"""The laws of contract 3, by subject matter."""
