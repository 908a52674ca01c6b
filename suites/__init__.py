"""Contracts, laws and the tests that run them on torch's own systems."""
