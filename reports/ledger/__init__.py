"""Ledgers edited: what `everyrank accept` changes, and how it shows that."""
