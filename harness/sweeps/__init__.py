"""Run a test once for each point of a rank, with a fault there: ``rank 1 dies at each collective``."""
