"""The laws of ``trainer``."""
