"""A small library with functions to test on many ranks."""
