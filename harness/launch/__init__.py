"""Launchers: ways to start the ranks of a world."""
