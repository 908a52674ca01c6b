"""How fast everyrank is, as ratios measured within one run. See README.md beside this file."""
