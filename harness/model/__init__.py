"""Plain data and texts that every other room may import."""
