"""``everyrank doctor``: what this machine can run."""
