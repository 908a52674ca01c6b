"""A training that is saved on some ranks, and goes on on others."""
