"""Run a function on each rank of a world, without a test."""
