"""Launchers start the ranks of a world."""
