"""``everyrank doctor``."""
