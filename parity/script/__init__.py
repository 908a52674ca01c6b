"""A script that somebody starts with torchrun, at several sizes, without a line changed."""
