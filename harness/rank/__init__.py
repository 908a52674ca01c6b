"""Runs in each rank: serves orders, runs the test under pytest, files the record."""
