"""Models that were not written for parity, from packages that are no dependency: `make test-models` installs them."""
