"""The kill matrix: every rogue against every law."""
