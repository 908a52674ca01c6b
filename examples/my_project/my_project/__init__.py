"""A small library with something to test on many ranks."""
