"""Source files and stack frames: whose they are, and their short names."""
