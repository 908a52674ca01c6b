"""The laws of contract 4, by subject matter."""
