"""Run a green test again with one collective changed at a time, and judge whether it notices: ``pytest --mutate``."""
