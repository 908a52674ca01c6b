"""The subjects of ``trainer``: two exemplars, and what torch has."""
