"""Two modules that should be one model."""
